// Sessions over TLS: whose they are, and what both ends agree upon.

package qmux

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// overTLS has a listener with these options until the test is over.
func overTLS(t *testing.T, o tunnel.Options) (addr string, accepted <-chan tunnel.Session) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(ln, o)
	if err != nil {
		t.Fatal(err)
	}
	return ln.Addr().String(), tunneltest.Serve(t, l)
}

// dialed makes a session that is closed with the test.
func dialed(t *testing.T, addr string, o tunnel.Options) *Session {
	t.Helper()
	s, err := Dial(waiting(t), addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.(*Session)
}

func sessionOf(t *testing.T, accepted <-chan tunnel.Session) *Session {
	t.Helper()
	select {
	case s := <-accepted:
		return s.(*Session)
	case <-waiting(t).Done():
		t.Fatal("no session at the server")
		return nil
	}
}

// Whether a session outlives its connections is agreed on, whichever end does not want
// that.
func TestNegotiation(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	for _, tc := range []struct {
		name           string
		client, server time.Duration
		want           time.Duration // window
		notice         string
	}{
		{"both", 0, 0, tunnel.DefaultDetachWindow, ""},
		{"the shorter window", 20 * time.Second, 10 * time.Second, 10 * time.Second, ""},
		{"client has none", -1, 0, 0, "the client does not resume"},
		{"server has none", 0, -1, 0, "the server does not resume"},
		{"neither has one", -1, -1, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log tunneltest.Log
			addr, accepted := overTLS(t, tunnel.Options{TLS: ca.Server(t), Link: tunnel.LinkOptions{DetachWindow: tc.server}, Log: log.Logger()})
			d := dialed(t, addr, tunnel.Options{TLS: ca.Client(t, "a"), Link: tunnel.LinkOptions{DetachWindow: tc.client}, Log: log.Logger()})
			a := sessionOf(t, accepted)
			for _, s := range []*Session{d, a} {
				l := s.Link()
				if l.Window != tc.want || l.Addr == nil {
					t.Errorf("link: %+v; want a window of %v", l, tc.want)
				}
				if p := s.Peer(); p.Transport != Name || p.TLS == nil || len(p.TLS.PeerCertificates) == 0 {
					t.Errorf("peer: %+v", p)
				}
			}
			near, far := opened(t, d, a)
			says(t, far, "and back")
			hears(t, near, "and back")
			told, tell := false, d.tellMoved
			d.tellMoved = func() { told = true; tell() }
			if err := d.Move(waiting(t)); (err == nil) != (tc.want > 0) || told != (err == nil) {
				t.Errorf("move: %v; what dials is told: %t", err, told)
			}
			if got := log.String(); (tc.notice == "") == strings.Contains(got, "will end with its connection") || !strings.Contains(got, tc.notice) {
				t.Errorf("log: %q; want %q", got, tc.notice)
			}
		})
	}
}

// A session goes on over another connection, the handshake of which is a resumption as
// long as the server gives tickets.
func TestResumesWithTicket(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	for _, disabled := range []bool{false, true} {
		resumed := make(chan bool, 100)
		conf := ca.Server(t)
		conf.SessionTicketsDisabled = disabled
		addr, accepted := overTLS(t, tunnel.Options{TLS: conf, Link: tunnel.LinkOptions{Resume: func(p tunnel.Peer) error {
			if cn := p.TLS.PeerCertificates[0].Subject.CommonName; cn != "system:node:a" {
				t.Errorf("resumed by %s", cn)
			}
			resumed <- p.TLS.DidResume
			return nil
		}}})
		relay := tunneltest.NewRelay(t, addr)
		d := dialed(t, relay.Addr(), tunnel.Options{TLS: ca.Client(t, "a")})
		near, far := opened(t, d, sessionOf(t, accepted))
		for range 3 {
			says(t, near, "before")
			hears(t, far, "before")
			says(t, far, "likewise")
			hears(t, near, "likewise") // the ticket has come, too
			relay.Cut()
			says(t, near, "after")
			hears(t, far, "after")
			if did := <-resumed; did == disabled {
				t.Errorf("tickets disabled: %t, handshake resumed: %t", disabled, did)
			}
		}
		if l := d.Link(); l.Resumes < 3 {
			t.Errorf("%+v", l)
		}
	}
}

// TestAuthorityReplaced: a session goes on when the authority of its server has been replaced.
func TestAuthorityReplaced(t *testing.T) {
	before, after := tunneltest.NewAuthority(t, "before"), tunneltest.NewAuthority(t, "after")
	var now atomic.Pointer[tls.Config]
	now.Store(before.Server(t))
	conf := now.Load().Clone()
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return now.Load(), nil }
	addr, accepted := overTLS(t, tunnel.Options{TLS: conf})
	relay := tunneltest.NewRelay(t, addr)
	client := before.Client(t, "a")
	client.ClientSessionCache = noTickets{}
	var roots atomic.Pointer[x509.CertPool]
	roots.Store(before.Pool())
	d := dialed(t, relay.Addr(), tunnel.Options{TLS: client, Roots: roots.Load})
	near, far := opened(t, d, sessionOf(t, accepted))
	next := after.Server(t)
	next.ClientCAs, next.NextProtos = before.Pool(), conf.NextProtos
	now.Store(next)
	roots.Store(after.Pool())
	relay.Cut()
	says(t, near, "after")
	hears(t, far, "after")
}

// A session goes on for its identity only, however good another one's certificate is,
// and a new key is the same identity.
func TestIdentity(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	for _, tc := range []struct {
		name, then string
		same       bool
	}{
		{"renewed certificate", "a", true},
		{"another node", "b", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr, accepted := overTLS(t, tunnel.Options{TLS: ca.Server(t)})
			relay := tunneltest.NewRelay(t, addr)
			client := ca.Client(t, "a")
			certs := []tls.Certificate{client.Certificates[0], ca.Issue(t, "system:node:"+tc.then, time.Time{})}
			client.Certificates = nil
			var mu sync.Mutex
			asked := 0
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				mu.Lock()
				defer mu.Unlock()
				asked++
				return &certs[min(asked, len(certs))-1], nil
			}
			client.ClientSessionCache = noTickets{}
			d := dialed(t, relay.Addr(), tunnel.Options{TLS: client})
			a := sessionOf(t, accepted)
			near, far := opened(t, d, a)
			relay.Cut()
			if tc.same {
				says(t, near, "after")
				hears(t, far, "after")
				return
			}
			select {
			case <-d.Context().Done():
			case <-waiting(t).Done():
				t.Fatal("the other node waits")
			}
			if err := context.Cause(d.Context()); tunnel.CodeOf(err) != tunnel.Lost {
				t.Errorf("%v", err)
			}
			if l := a.Link(); l.Resumes != 0 {
				t.Errorf("the other node got the session: %+v", l)
			}
		})
	}
}

// noTickets keeps none.
type noTickets struct{}

func (noTickets) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (noTickets) Put(string, *tls.ClientSessionState)        {}

// A server that came back without resumption ends the session at once.
func TestServerDoesNotResumeAnyMore(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	conf := ca.Server(t)
	addr, accepted := overTLS(t, tunnel.Options{TLS: conf})
	old, _ := overTLS(t, tunnel.Options{TLS: conf, Link: tunnel.LinkOptions{DetachWindow: -1}})
	var mu sync.Mutex
	var last net.Conn
	d := dialed(t, addr, tunnel.Options{TLS: ca.Client(t, "a"), Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		last = c
		return c, err
	}})
	opened(t, d, sessionOf(t, accepted))
	mu.Lock()
	addr = old
	_ = last.Close() // what the test is about
	mu.Unlock()
	select {
	case <-d.Context().Done():
	case <-waiting(t).Done():
		t.Fatal("it waits")
	}
	if err := context.Cause(d.Context()); tunnel.CodeOf(err) != tunnel.Lost || !strings.Contains(err.Error(), "does not resume any more") {
		t.Errorf("%v", err)
	}
}

// What is wrong with a server or a certificate is said with the address.
func TestDialIsRefused(t *testing.T) {
	ca, other := tunneltest.NewAuthority(t, "ca"), tunneltest.NewAuthority(t, "other")
	addr, _ := overTLS(t, tunnel.Options{TLS: ca.Server(t)})
	stranger := other.Client(t, "a")
	stranger.RootCAs = ca.Pool()
	for name, tc := range map[string]struct {
		conf *tls.Config
		want string
	}{
		"no configuration":            {nil, "no TLS configuration"},
		"server of another authority": {other.Client(t, "a"), "unknown authority"},
		"client of another authority": {stranger, "certificate"},
	} {
		if _, err := Dial(waiting(t), addr, tunnel.Options{TLS: tc.conf}); err == nil || !strings.HasPrefix(err.Error(), "connect to "+addr+": ") || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
