// Tests of nodes whose certificate has expired.

package bootstrap

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

// A diary is a log that may be read while it is written.
type diary struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (d *diary) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.buf.Write(p)
}

func (d *diary) lines(with string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var lines []string
	for line := range strings.Lines(d.buf.String()) {
		if strings.Contains(line, with) {
			lines = append(lines, line)
		}
	}
	return lines
}

// A notice calls found when text is logged. The handler has one line written at a time.
type notice struct {
	bytes.Buffer
	text  string
	found func()
}

func (n *notice) Write(p []byte) (int, error) {
	if strings.Contains(string(p), n.text) {
		n.found()
	}
	return n.Buffer.Write(p)
}

// outlived writes an expired certificate of a node to c.Dir.
func outlived(t *testing.T, c *Config, ca *authority) *x509.Certificate {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	cert := ca.Sign(t, &x509.Certificate{
		Subject:   pkix.Name{CommonName: "system:node:node-1", Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	}, &key.PublicKey)
	if err = errors.Join(writePair(c.path(clientFile), encodeCerts(cert), key), writeFile(c.path(caFile), encodeCerts(ca.Cert), 0o644)); err != nil {
		t.Fatal(err)
	}
	return cert
}

// heldBy makes the server approve requests as the control plane does, where the name of the
// node is held by the key of a certificate. It returns the records.
func (s *server) heldBy(cert *x509.Certificate) *nodekeys.Book {
	names := nodekeys.NewBook(fake.NewClientset())
	if err := names.Claim(s.t.Context(), "node-1", nodekeys.KeyOf(cert), ""); err != nil {
		s.t.Fatal(err)
	}
	approve := s.decide
	s.decide = func(csr *certificates.CertificateSigningRequest) {
		key := nodekeys.Key(sha256.Sum256(parsed(s.t, csr).RawSubjectPublicKeyInfo))
		if err := names.Claim(context.Background(), "node-1", key, ""); err != nil {
			csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateDenied, Status: "True", Reason: "NodeNameHeld", Message: err.Error()}}
			return
		}
		approve(csr)
	}
	return names
}

// A node with a token whose certificate has expired has its identity from the start, and joins
// again when a server is reachable. It needs no hash of the CA, which is stored. It has the key
// that holds its name.
func TestExpiredNodeJoinsAnew(t *testing.T) {
	ca := newAuthority(t)
	s := newServer(t, ca, nil)
	c := s.config()
	c.Pins = nil
	old := outlived(t, &c, ca)
	s.heldBy(old)
	var log diary
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	id, err := Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	renewed := make(chan struct{}, 1)
	r, err := NewRotation(RotationConfig{
		Identity: id, Requests: &memoryRequests{t: t, fail: errors.New("nobody is let in")},
		Renewed: func() { renewed <- struct{}{} }, Log: c.Log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	select {
	case <-renewed:
	case <-time.After(time.Minute):
		t.Errorf("no new certificate in time: %s", log.lines("level=ERROR"))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	cert, err := id.GetClientCertificate(nil)
	if err != nil || cert.Leaf.Equal(old) || time.Now().After(cert.Leaf.NotAfter) {
		t.Errorf("certificate until %v, %v", cert.Leaf.NotAfter, err)
	} else if !old.PublicKey.(*ecdsa.PublicKey).Equal(cert.Leaf.PublicKey) {
		t.Error("the certificate has another key")
	}
	if kept, err := readPair(c.path(clientFile)); err != nil || !kept.Leaf.Equal(cert.Leaf) {
		t.Errorf("the file has another certificate: %v", err)
	}
	if _, err := os.Stat(c.path(pendingFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pending key is still there: %v", err)
	}
}

// It needs no disk for that: the certificate is used though it cannot be written.
func TestExpiredNodeWithFullDisk(t *testing.T) {
	ca := newAuthority(t)
	c := newServer(t, ca, nil).config()
	outlived(t, &c, ca)
	id, r := joined(t, c)
	defer blocked(t, c.path(clientFile))()
	if err := r.client.replace(t.Context()); err != nil || time.Now().After(id.expires()) {
		t.Errorf("a certificate until %v, %v", id.expires(), err)
	}
}

func loseCA(t *testing.T, c *Config) {
	t.Helper()
	if err := os.Remove(c.path(caFile)); err != nil {
		t.Fatal(err)
	}
}

// empty empties a file.
func empty(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A node that has lost the file with the cluster's CA, or its contents, joins again with the key
// that it has.
func TestNodeWithoutCAJoinsAnew(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, *Config){
		"lost":  loseCA,
		"empty": func(t *testing.T, c *Config) { t.Helper(); empty(t, c.path(caFile)) },
	} {
		t.Run(name, func(t *testing.T) {
			ca := newAuthority(t)
			s := newServer(t, ca, nil)
			c := s.config()
			s.heldBy(outlived(t, &c, ca))
			lose(t, &c)
			token := c.Token
			c.Token = Token{}
			if _, err := Join(t.Context(), c); err == nil || !strings.Contains(err.Error(), "join anew with a token") || strings.Contains(err.Error(), "remove ") {
				t.Errorf("without a token: %v", err)
			}
			c.Token = token
			if _, err := Join(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNodeWithoutItsKey: with the file of its certificate a node loses its key, which holds its name.
// The remedy that it prints works, and not without the administrator.
func TestNodeWithoutItsKey(t *testing.T) {
	ca := newAuthority(t)
	s := newServer(t, ca, nil)
	c := s.config()
	names := s.heldBy(outlived(t, &c, ca))
	empty(t, c.path(clientFile))
	if _, err := Join(t.Context(), c); err == nil || !strings.Contains(err.Error(), `"hawser node allow node-1"`) || !strings.Contains(err.Error(), "remove the file and join with a token") {
		t.Errorf("error %v", err)
	}
	if err := remove(c.path(clientFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Join(t.Context(), c); !errors.As(err, new(*DeniedError)) {
		t.Errorf("while another key holds the name: %v", err)
	}
	if err := names.Allow(t.Context(), "node-1", "admin", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := Join(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// If the key that the node has is denied it tries another one, and that one's denial leads
// back: which of them may have the name can change meanwhile.
func TestExpiredNodeIsDenied(t *testing.T) {
	ca := newAuthority(t)
	s := newServer(t, ca, nil)
	c := s.config()
	old := outlived(t, &c, ca)
	var own []bool // of each request, whether it has the key of before
	s.decide = func(csr *certificates.CertificateSigningRequest) {
		own = append(own, old.PublicKey.(*ecdsa.PublicKey).Equal(parsed(t, csr).PublicKey))
		csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateDenied, Status: "True", Message: "no"}}
	}
	id, err := Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if _, err := id.rejoin(t.Context(), id.cert.Load()); !errors.As(err, new(*DeniedError)) {
			t.Errorf("error %v", err)
		}
		clear(s.csrs) // cleaned away
	}
	if got := fmt.Sprint(own); got != "[true false true false]" {
		t.Errorf("requests with the key of before: %s", got)
	}
}

// A server whose address is another's now, or that does not know the token, keeps no node from
// the other servers.
func TestExpiredNodeAsksEachServer(t *testing.T) {
	ca := newAuthority(t)
	foreign, forgetful, good := newServer(t, newAuthority(t), nil), newServer(t, ca, nil), newServer(t, ca, nil)
	forgetful.token = "abcdef.ffffffffffffffff"
	c := good.config()
	old := outlived(t, &c, ca)
	good.heldBy(old)
	c.Servers = []string{foreign.http.URL, forgetful.http.URL, good.http.URL}
	id, err := Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := id.rejoin(t.Context(), id.cert.Load()); err != nil || len(data) == 0 {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	id.cfg.Servers = c.Servers[:2]
	if _, err := id.rejoin(t.Context(), id.cert.Load()); !errors.As(err, new(*PinError)) || !errors.Is(err, ErrTokenRejected) || strings.Contains(err.Error(), "\n") {
		t.Errorf("of two that give none: %v", err)
	}
}

// An invalid token is reported as the cause, with the remedy.
func TestExpiredNodeWithSpentToken(t *testing.T) {
	ca := newAuthority(t)
	c := newServer(t, ca, nil).config()
	c.Token.Secret = "ffffffffffffffff"
	outlived(t, &c, ca)
	_, r := joined(t, c)
	err := r.client.replace(t.Context())
	if !errors.Is(err, ErrTokenRejected) || !strings.Contains(err.Error(), "hawser token create --print-join-command") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

// Without a token it logs the remedy once, and keeps trying: this machine's clock may be
// wrong.
func TestExpiredNodeWithoutToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t)
		var log diary
		c := Config{NodeName: "node-1", Dir: t.TempDir(), Servers: []string{"https://x"}, Log: slog.New(slog.NewTextHandler(&log, nil))}
		old := outlived(t, &c, ca)
		id, err := Join(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		api := &memoryRequests{t: t, ca: ca, csrs: map[string]*certificates.CertificateSigningRequest{}, life: time.Hour, fail: errors.New("not connected")}
		r, err := NewRotation(RotationConfig{Identity: id, Requests: api, Log: c.Log})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		advance(time.Hour)
		if n := len(api.tries()); n < 2*8 || n > 2*30 {
			t.Errorf("%d tries in an hour for two certificates", n)
		}
		lines := log.lines("hawser token create --print-join-command")
		if len(lines) != 1 || !strings.Contains(lines[0], "level=ERROR") || !strings.Contains(lines[0], "not connected") {
			t.Errorf("said: %q", lines)
		}
		api.mu.Lock()
		api.fail = nil
		api.mu.Unlock()
		advance(20 * time.Minute)
		if cert, err := id.GetClientCertificate(nil); err != nil || cert.Leaf.Equal(old) {
			t.Errorf("not replaced: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
