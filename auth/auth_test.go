package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestNodeName(t *testing.T) {
	for _, tc := range []struct {
		name, cn string
		orgs     []string
		want     string
	}{
		{"good", "system:node:node-1", []string{"system:nodes"}, "node-1"},
		{"dotted, more groups", "system:node:a.b-c.9", []string{"x", "system:nodes"}, "a.b-c.9"},
		{"no prefix", "node-1", []string{"system:nodes"}, ""},
		{"no group", "system:node:node-1", nil, ""},
		{"group in another case", "system:node:node-1", []string{"System:nodes"}, ""},
		{"empty name", "system:node:", []string{"system:nodes"}, ""},
		{"upper case", "system:node:Node", []string{"system:nodes"}, ""},
		{"zone separator", "system:node:a%b", []string{"system:nodes"}, ""},
		{"colon", "system:node:a:80", []string{"system:nodes"}, ""},
		{"dash first", "system:node:-a", []string{"system:nodes"}, ""},
		{"dash last in label", "system:node:a-.b", []string{"system:nodes"}, ""},
		{"empty label", "system:node:a..b", []string{"system:nodes"}, ""},
		{"253 bytes", "system:node:" + strings.Repeat("a", 253), []string{"system:nodes"}, strings.Repeat("a", 253)},
		{"254 bytes", "system:node:" + strings.Repeat("a", 254), []string{"system:nodes"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := NodeName(&x509.Certificate{Subject: pkix.Name{CommonName: tc.cn, Organization: tc.orgs}})
			if got != tc.want || (tc.want == "") != errors.Is(err, ErrNotNode) {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
	if _, err := NodeName(nil); !errors.Is(err, ErrNotNode) {
		t.Errorf("no certificate: %v", err)
	}
}

// An authority issues certificates for the tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	from time.Time // start of validity of its certificates
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	return newAuthorityOf(t, time.Time{})
}

// newAuthorityOf is newAuthority, made at that time.
func newAuthorityOf(t *testing.T, made time.Time) *authority {
	t.Helper()
	return newAuthorityFor(t, newKey(t), made)
}

// newAuthorityFor is newAuthorityOf, with a key.
func newAuthorityFor(t *testing.T, key *ecdsa.PrivateKey, made time.Time) *authority {
	t.Helper()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: made, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert: cert, key: key}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue returns a certificate and its key, both in PEM.
func (a *authority) issue(t *testing.T, cn string, orgs ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: cn, Organization: orgs},
		NotBefore: a.from, NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"server"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})
}

func write(t *testing.T, file string, b []byte) {
	t.Helper()
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// handshake runs both configs against each other and returns the errors of both
// ends.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		s := tls.Server(a, server)
		err := s.HandshakeContext(t.Context())
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		done <- err
		_ = a.Close()
	}()
	c := tls.Client(b, client)
	// In TLS 1.3 a client gets a refusal only by reading.
	_, clientErr = c.Read(make([]byte, 1))
	_ = b.Close()
	return <-done, clientErr
}

func TestTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	pair := func(a *authority, cn string) *tls.Certificate {
		c, k := a.issue(t, cn, NodesGroup)
		p, err := tls.X509KeyPair(c, k)
		if err != nil {
			t.Fatal(err)
		}
		return &p
	}
	trusted := ca.pool()
	serverCert, node, stranger := pair(ca, "server"), pair(ca, "system:node:n"), pair(other, "system:node:n")
	server := ServerTLS(
		func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serverCert, nil },
		func() (*x509.CertPool, error) { return trusted, nil },
	)
	show := func(c *tls.Certificate) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
	}
	old := ClientTLS(show(node), ca.pool(), "server")
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for _, tc := range []struct {
		name   string
		client *tls.Config
		ok     bool
	}{
		{"node", ClientTLS(show(node), ca.pool(), "server"), true},
		{"certificate of another authority", ClientTLS(show(stranger), ca.pool(), "server"), false},
		{"no certificate", ClientTLS(show(new(tls.Certificate)), ca.pool(), "server"), false},
		{"wrong server name", ClientTLS(show(node), ca.pool(), "elsewhere"), false},
		{"server of another authority", ClientTLS(show(node), other.pool(), "server"), false},
		{"TLS 1.2", old, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			serr, cerr := handshake(t, server, tc.client)
			if (serr == nil) != tc.ok || (cerr == nil) != tc.ok {
				t.Errorf("server: %v, client: %v", serr, cerr)
			}
		})
	}
	t.Run("authorities are asked anew", func(t *testing.T) {
		trusted = other.pool()
		if serr, _ := handshake(t, server, ClientTLS(show(stranger), ca.pool(), "server")); serr != nil {
			t.Errorf("new authority: %v", serr)
		}
		if serr, _ := handshake(t, server, ClientTLS(show(node), ca.pool(), "server")); serr == nil {
			t.Error("old authority still trusted")
		}
	})
}

// A client of the server refuses a node's certificate, of any authority.
func TestNodeIsNoServer(t *testing.T) {
	ca := newAuthority(t)
	load := func(cn string) *tls.Certificate {
		c, k := ca.issue(t, cn, NodesGroup)
		p, err := tls.X509KeyPair(c, k)
		if err != nil {
			t.Fatal(err)
		}
		return &p
	}
	node := load("system:node:n")
	server := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return node, nil }}
	client := ClientTLS(func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return node, nil }, ca.pool(), "server")
	if _, err := handshake(t, server, client); err == nil || !strings.Contains(err.Error(), "certificate of a node (system:node:n)") {
		t.Errorf("got %v", err)
	}
}

// Certificates that an authority signs after its replacement are refused, also on resumed
// connections.
func TestSupersededAuthority(t *testing.T) {
	old, now := newAuthority(t), newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	write(t, file, append(now.pem(), old.pem()...))
	cas, err := new(Files).Authorities(file)
	if err != nil {
		t.Fatal(err)
	}
	leaf := func(from time.Time) *x509.Certificate {
		return &x509.Certificate{NotBefore: from, Subject: pkix.Name{CommonName: "system:node:n"}}
	}
	before, after := now.cert.NotBefore, now.cert.NotBefore.Add(time.Second)
	for name, tc := range map[string]struct {
		chains [][]*x509.Certificate
		ok     bool
	}{
		"nothing verified":      {nil, true},
		"by the new one":        {[][]*x509.Certificate{{leaf(after), now.cert}}, true},
		"by the old one before": {[][]*x509.Certificate{{leaf(before), old.cert}}, true},
		"by the old one later":  {[][]*x509.Certificate{{leaf(after), old.cert}}, false},
		"by both":               {[][]*x509.Certificate{{leaf(after), old.cert}, {leaf(after), now.cert}}, true},
	} {
		if err := cas.Check(tc.chains); (err == nil) != tc.ok || err != nil && !errors.Is(err, ErrSuperseded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	serving, k := now.issue(t, "server")
	mine, err := tls.X509KeyPair(serving, k)
	if err != nil {
		t.Fatal(err)
	}
	server := cas.ServerTLS(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &mine, nil })
	c, k := old.issue(t, "system:node:n", NodesGroup) // its validity starts in the year 1
	early, err := tls.X509KeyPair(c, k)
	if err != nil {
		t.Fatal(err)
	}
	if err, _ := handshake(t, server, ClientTLS(func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &early, nil }, now.pool(), "server")); err != nil {
		t.Errorf("an old certificate: %v", err)
	}
	old.from = time.Now().Add(-time.Minute)
	c, k = old.issue(t, "system:node:n", NodesGroup)
	late, err := tls.X509KeyPair(c, k)
	if err != nil {
		t.Fatal(err)
	}
	if err, _ := handshake(t, server, ClientTLS(func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &late, nil }, now.pool(), "server")); !errors.Is(err, ErrSuperseded) {
		t.Errorf("a late certificate: %v", err)
	}
}

// TestComingAuthority: what an authority signs that is listed second, and was made after the first
// one, is believed, so that each server can believe it before any of them signs with it.
func TestComingAuthority(t *testing.T) {
	made := time.Now().Add(-time.Minute)
	old, next := newAuthorityOf(t, made.Add(-time.Hour)), newAuthorityOf(t, made)
	again := newAuthorityFor(t, next.key, made.Add(-10*time.Minute))
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		file   []byte
		byOld  bool // what the old one signed since
		byNext bool
	}{
		"it does not sign yet": {append(old.pem(), next.pem()...), true, true},
		"it signs":             {append(next.pem(), old.pem()...), false, true},
		"it was made again":    {append(old.pem(), again.pem()...), true, true},
	} {
		file := filepath.Join(dir, name)
		write(t, file, tc.file)
		cas, err := new(Files).Authorities(file)
		if err != nil {
			t.Fatal(err)
		}
		serving, k := old.issue(t, "server")
		mine, err := tls.X509KeyPair(serving, k)
		if err != nil {
			t.Fatal(err)
		}
		server := cas.ServerTLS(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &mine, nil })
		for by, want := range map[*authority]bool{old: tc.byOld, next: tc.byNext} {
			by.from = made.Add(30 * time.Second)
			c, k := by.issue(t, "system:node:n", NodesGroup)
			by.from = time.Time{}
			client, err := tls.X509KeyPair(c, k)
			if err != nil {
				t.Fatal(err)
			}
			err, _ = handshake(t, server, ClientTLS(func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &client, nil }, old.pool(), "server"))
			if (err == nil) != want || err != nil && !errors.Is(err, ErrSuperseded) {
				t.Errorf("%s: a certificate made 30 s after the next one, by %s: %v", name, map[bool]string{true: "the old one", false: "the next one"}[by == old], err)
			}
		}
	}
}
