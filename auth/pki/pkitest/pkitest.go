// Package pkitest makes certificates for tests: of authorities in memory, and a key
// directory from when one authority signed everything.
package pkitest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An Authority signs certificates for tests.
type Authority struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// New makes an authority that is valid for an hour before and an hour after now.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{Key: NewKey(t)}
	a.Cert = a.Sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), KeyUsage: x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true,
	}, a.Key.Public())
	return a
}

// Load reads an authority from its files.
func Load(t testing.TB, certFile, keyFile string) *Authority {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{Cert: pair.Leaf, Key: pair.PrivateKey.(crypto.Signer)}
}

// Issue signs tmpl for a new key, as Sign does.
func (a *Authority) Issue(t testing.TB, tmpl *x509.Certificate) *tls.Certificate {
	t.Helper()
	key := NewKey(t)
	cert := a.Sign(t, tmpl, key.Public())
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// Pool trusts the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Cert)
	return pool
}

// PEM is the certificate of the authority.
func (a *Authority) PEM() []byte { return PEM("CERTIFICATE", a.Cert.Raw) }

// PEM encodes one block.
func PEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// KeyPEM encodes a private key as PKCS #8.
func KeyPEM(t testing.TB, key crypto.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return PEM("PRIVATE KEY", der)
}

// Sign makes a certificate after tmpl for a public key, with a serial number of its own.
// A zero NotAfter means in an hour, a zero NotBefore a minute ago. An authority without
// a certificate signs its own.
func (a *Authority) Sign(t testing.TB, tmpl *x509.Certificate, pub crypto.PublicKey) *x509.Certificate {
	t.Helper()
	if tmpl.NotAfter.IsZero() {
		tmpl.NotAfter = time.Now().Add(time.Hour)
	}
	if tmpl.NotBefore.IsZero() {
		tmpl.NotBefore = time.Now().Add(-time.Minute)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	tmpl.SerialNumber = serial
	parent := a.Cert
	if parent == nil {
		parent = tmpl
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, a.Key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// NodeClient is the template of a node's client certificate, as the signer makes it.
func NodeClient(node string) *x509.Certificate {
	return &x509.Certificate{
		Subject:  pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
}

// NodeServing is the template of a node's serving certificate for names, which may be
// IP addresses.
func NodeServing(node string, names ...string) *x509.Certificate {
	c := NodeClient(node)
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	return c
}

// Legacy makes in dir, dated a day ago, the files of a server whose authority signs
// everything. names are those of the server, and may be IP addresses.
func Legacy(t testing.TB, dir string, names ...string) *Authority {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	from, until := time.Now().Add(-24*time.Hour), time.Now().Add(364*24*time.Hour)
	a := &Authority{Key: NewKey(t)}
	a.Cert = a.Sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "hawser-ca"}, NotBefore: from, NotAfter: from.Add(10 * 365 * 24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true, IsCA: true,
	}, a.Key.Public())
	save(t, dir, "ca", a.Key, a.Cert)
	serving := NodeServing("", names...)
	serving.Subject = pkix.Name{CommonName: "kube-apiserver"}
	leaves := map[string]*x509.Certificate{"apiserver": serving}
	for name, subject := range map[string]pkix.Name{
		"kubelet-client":     {CommonName: "kube-apiserver-kubelet-client", Organization: []string{"hawser:kubelet-admin"}},
		"connect-client":     {CommonName: "hawser:connect-client"},
		"admin":              {CommonName: "kubernetes-admin", Organization: []string{"system:masters"}},
		"controller-manager": {CommonName: "system:kube-controller-manager"},
		"scheduler":          {CommonName: "system:kube-scheduler"},
	} {
		c := NodeClient("")
		c.Subject = subject
		leaves[name] = c
	}
	for name, tmpl := range leaves {
		tmpl.NotBefore, tmpl.NotAfter = from, until
		key := NewKey(t)
		chain := []*x509.Certificate{a.Sign(t, tmpl, key.Public())}
		if name == "apiserver" {
			chain = append(chain, a.Cert)
		}
		save(t, dir, name, key, chain...)
	}
	return a
}

// NewKey makes a private key.
func NewKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// save writes a pair NAME.key and NAME.crt.
func save(t testing.TB, dir, name string, key crypto.Signer, chain ...*x509.Certificate) {
	t.Helper()
	var certs []byte
	for _, c := range chain {
		certs = append(certs, PEM("CERTIFICATE", c.Raw)...)
	}
	for file, data := range map[string][]byte{
		name + ".key": KeyPEM(t, key), name + ".crt": certs,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
