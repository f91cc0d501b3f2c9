// TLS: who is let in, by which certificate, ticket and protocol.

package carrier

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A ticket vouches for nothing: what is checked of a certificate at first is
// checked at each resumption.
func TestTicketVouchesForNothing(t *testing.T) {
	ca, other := tunneltest.NewAuthority(t, "ca"), tunneltest.NewAuthority(t, "other")
	for _, tc := range []struct {
		name string
		turn func(conf *tls.Config, now *time.Time)
	}{
		{"expired certificate", func(_ *tls.Config, now *time.Time) { *now = now.Add(2 * time.Hour) }},
		{"authority not trusted any more", func(conf *tls.Config, _ *time.Time) { conf.ClientCAs = other.Pool() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var (
				mu   sync.Mutex
				now  = time.Now()
				base = ca.Server(t)
			)
			base.Time = func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				return now
			}
			conf := base.Clone()
			conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
				mu.Lock()
				defer mu.Unlock()
				return base.Clone(), nil
			}
			srv := serve(t, tunnel.Options{TLS: conf})
			client := ca.Client(t, "a")
			client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
			first := dial(t, srv.addr, tunnel.Options{TLS: client})
			said(t, srv.next(t), first, "and a ticket")
			second := dial(t, srv.addr, tunnel.Options{TLS: client})
			if !srv.next(t).ConnectionState().DidResume || !second.ConnectionState().DidResume {
				t.Fatal("the second session was to resume the first one's handshake")
			}
			mu.Lock()
			tc.turn(base, &now)
			mu.Unlock()
			if _, err := reach(t, srv.addr, tunnel.Options{TLS: client}); err == nil {
				t.Error("the ticket was taken for a good certificate")
			} else if isTimeout(err) {
				t.Errorf("the client does not learn that it is refused: %v", err)
			}
		})
	}
}

// A certificate that is not good is refused at once, and so is a server that does not ask
// for one.
func TestRefusedAtOnce(t *testing.T) {
	ca, other := tunneltest.NewAuthority(t, "ca"), tunneltest.NewAuthority(t, "other")
	good := ca.Server(t)
	open := good.Clone()
	open.ClientAuth = tls.NoClientCert
	expired := ca.Client(t, "a")
	expired.Certificates = []tls.Certificate{ca.Issue(t, "system:node:a", time.Now().Add(-time.Minute))}
	for _, tc := range []struct {
		name   string
		server *tls.Config
		client *tls.Config
		want   string
	}{
		{"no configuration", good, nil, "no TLS configuration"},
		{"server of another authority", good, other.Client(t, "a"), "unknown authority"},
		{"client of another authority", good, func() *tls.Config {
			c := other.Client(t, "a")
			c.RootCAs = ca.Pool()
			return c
		}(), "certificate"},
		{"expired client", good, expired, "certificate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := serve(t, tunnel.Options{TLS: tc.server})
			_, err := reach(t, srv.addr, tunnel.Options{TLS: tc.client})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v; want %q", err, tc.want)
			}
		})
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if _, err := Listen(ln, "test", []string{spoken}, Bare, tunnel.Options{TLS: open}, nil); err == nil {
		t.Error("listened without asking for client certificates")
	}
	var unknown x509.UnknownAuthorityError
	srv := serve(t, tunnel.Options{TLS: good})
	if _, err := reach(t, srv.addr, tunnel.Options{TLS: other.Client(t, "a")}); !errors.As(err, &unknown) {
		t.Errorf("untyped: %v", err)
	}
}

// A peer of another protocol is not taken for one of this.
func TestWrongALPN(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	srv := serve(t, tunnel.Options{TLS: ca.Server(t)})
	for _, names := range [][]string{nil, {"http/1.1"}, {"hawser/1"}} {
		conf := ca.Client(t, "a")
		conf.NextProtos = names
		c, err := (&tls.Dialer{Config: conf}).DialContext(within(t), "tcp", srv.addr)
		if err != nil {
			continue // told in the handshake
		}
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err = c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%q: %v", names, err)
		}
		_ = c.Close()
	}
	select {
	case <-srv.conns:
		t.Error("it was let in")
	default:
	}
}

// subject is the identity of a certificate with a name.
func subject(n pkix.Name) string {
	s, _ := Identity(tunnel.Peer{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: n}}}})
	return s
}

// What of a name says who somebody is has one spelling, and no other name has it.
func TestSubject(t *testing.T) {
	node := pkix.Name{CommonName: "n", Organization: []string{"x", "y"}}
	if a, b := subject(node), subject(pkix.Name{CommonName: "n", Organization: []string{"y", "x"}, SerialNumber: "7"}); a != b {
		t.Errorf("%s and %s", a, b)
	}
	for _, other := range []pkix.Name{
		{CommonName: "n"},
		{CommonName: "m", Organization: []string{"x", "y"}},
		{CommonName: "n", Organization: []string{"x"}},
		{CommonName: "n", Organization: []string{"x y"}},
		{CommonName: "n", Organization: []string{`x" "y`}},
		{CommonName: `n" ["x" "y"]`},
	} {
		if subject(other) == subject(node) {
			t.Errorf("%+v passes for %s", other, subject(node))
		}
	}
}
