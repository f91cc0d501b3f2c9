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
	"errors"
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

// A plain session is a pipe that is never multiplexed.
type plain struct {
	*Pipe
	ctx    context.Context
	cancel context.CancelCauseFunc
	closed sync.Once
}

var errNoStreams = errors.New("no streams here")

func (s *plain) Context() context.Context                      { return s.ctx }
func (s *plain) Open(context.Context) (tunnel.Stream, error)   { return nil, errNoStreams }
func (s *plain) Accept(context.Context) (tunnel.Stream, error) { return nil, errNoStreams }
func (s *plain) Close() error {
	s.closed.Do(func() {
		_ = s.Conn().Close() // its peer notices
		s.cancel(tunnel.ErrSessionClosed)
	})
	return nil
}

var _ tunnel.Resumer = (*plain)(nil)

func protocol() Protocol {
	return Protocol{Name: "plain", ALPN: "hawser-test/1", Start: func(p *Pipe, _ bool, _ tunnel.Options) (tunnel.Session, error) {
		s := &plain{Pipe: p}
		s.ctx, s.cancel = context.WithCancelCause(context.Background())
		return s, nil
	}}
}

// A server is a listener and the sessions that it makes.
type server struct {
	addr     string
	sessions chan *plain
	listener *listener
	stop     func() // and wait
}

// serve listens until the test is over or stop is called.
func serve(t testing.TB, o tunnel.Options) *server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	l, err := protocol().listen(ln, o)
	if err != nil {
		t.Fatal(err)
	}
	return l.run(t)
}

// run serves until the test is over or stop is called.
func (l *listener) run(t testing.TB) *server {
	t.Helper()
	s := &server{addr: l.Addr().String(), sessions: make(chan *plain, 100), listener: l}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		serr := l.Serve(ctx, func(ctx context.Context, x tunnel.Session) {
			s.sessions <- x.(*plain)
			<-ctx.Done()
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

// dial makes a session that is closed with the test.
func dial(t testing.TB, addr string, o tunnel.Options) *plain {
	t.Helper()
	s, err := protocol().Dial(within(t), addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.(*plain)
}

// next is the session that the server has made.
func (s *server) next(t testing.TB) *plain {
	t.Helper()
	select {
	case x := <-s.sessions:
		return x
	case <-within(t).Done():
		t.Fatal("no session at the server")
		return nil
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
