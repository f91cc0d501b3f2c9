// What the tests of this package have in common: authorities, certificates, and
// the simplest session there is.

package carrier

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait. It is no measure: what takes this long hangs.
const patience = 30 * time.Second

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// An authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	a.cert = sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
	}, nil, a.key, &a.key.PublicKey)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign signs template for pub, by itself if there is no parent.
func sign(t testing.TB, template, parent *x509.Certificate, key *ecdsa.PrivateKey, pub *ecdsa.PublicKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// issue makes a certificate for both ends' use that lasts until then; zero is an
// hour.
func (a *authority) issue(t testing.TB, name string, until time.Time) tls.Certificate {
	t.Helper()
	key := newKey(t)
	c := sign(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: []string{"system:nodes"}},
		DNSNames:    []string{"server"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		NotAfter:    until,
	}, a.cert, a.key, &key.PublicKey)
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
}

// server and client are configurations of either end.
func (a *authority) server(t testing.TB) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{a.issue(t, "server", time.Time{})},
		ClientCAs:    a.pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

func (a *authority) client(t testing.TB, node string) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{a.issue(t, "system:node:"+node, time.Time{})},
		RootCAs:      a.pool(), ServerName: "server",
	}
}

// protocols are those of the tests (RFC 7301).
var protocols = []string{"hawser-test/1"}

// A server is an Acceptor and the connections that it makes.
type server struct {
	*Acceptor
	addr  string
	conns chan *tls.Conn
	stop  func() // and wait
}

// serve listens until the test is over or stop is called.
func serve(t testing.TB, o tunnel.Options) *server {
	t.Helper()
	return listen(t, o).run(t)
}

// listen makes a server that does not run yet.
func listen(t testing.TB, o tunnel.Options) *server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	a, err := NewAcceptor(ln, protocols, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	return &server{Acceptor: a, addr: ln.Addr().String(), conns: make(chan *tls.Conn, 100)}
}

// run serves until the test is over or stop is called.
func (s *server) run(t testing.TB) *server {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		serr := s.Serve(ctx, func(ctx context.Context, c *tls.Conn) {
			s.conns <- c
			<-ctx.Done()
			_ = c.Close() // its peer may have been faster
		})
		if serr != nil {
			t.Errorf("serve: %v", serr)
		}
	})
	s.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(s.stop)
	return s
}

// newDialer is a Dialer to addr.
func newDialer(t testing.TB, addr string, o tunnel.Options) *Dialer {
	t.Helper()
	d, err := NewDialer(addr, protocols, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// try makes a connection, closes it, and says whether that worked.
func try(t testing.TB, addr string, conf *tls.Config) error {
	t.Helper()
	d, err := NewDialer(addr, protocols, nil, tunnel.Options{TLS: conf})
	if err != nil {
		return err
	}
	c, err := d.First(within(t))
	if err != nil {
		return err
	}
	defer c.Close()
	// With TLS 1.3 a client hears only now that it is not let in. One that is hears
	// nothing, and a word from it is as good as any.
	if _, err = c.Write([]byte("x")); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err = c.Read(make([]byte, 1)); isTimeout(err) {
		return nil
	}
	return err
}

// dial makes a connection that is closed with the test.
func dial(t testing.TB, addr string, o tunnel.Options) *tls.Conn {
	t.Helper()
	c, err := newDialer(t, addr, o).First(within(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// next is the connection that the server has made.
func (s *server) next(t testing.TB) *tls.Conn {
	t.Helper()
	select {
	case c := <-s.conns:
		return c
	case <-within(t).Done():
		t.Fatal("no connection at the server")
		return nil
	}
}

// said checks that what one end writes is what the other reads.
func said(t *testing.T, from, to net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(from, text); err != nil {
		t.Fatalf("write: %v", err)
	}
	got := make([]byte, len(text))
	_ = to.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v; want %q", got, err, text)
	}
}

// eventually waits for something that nobody announces.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	ctx := within(t)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not %s after %v", what, patience)
		}
	}
}
