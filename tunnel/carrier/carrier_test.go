package carrier

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// said checks that what one end writes is what the other reads.
func said(t *testing.T, from, to *plain, text string) {
	t.Helper()
	if _, err := io.WriteString(from.Conn(), text); err != nil {
		t.Fatalf("write: %v", err)
	}
	got := make([]byte, len(text))
	_ = to.Conn().SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(to.Conn(), got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v; want %q", got, err, text)
	}
}

// Whether there is a link is agreed on, whichever end does not want one.
func TestNegotiation(t *testing.T) {
	ca := newAuthority(t, "ca")
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
			var log lines
			srv := serve(t, tunnel.Options{TLS: ca.server(t), Link: tunnel.LinkOptions{DetachWindow: tc.server}, Log: log.logger()})
			near := dial(t, srv.addr, tunnel.Options{TLS: ca.client(t, "a"), Link: tunnel.LinkOptions{DetachWindow: tc.client}, Log: log.logger()})
			far := srv.next(t)
			for _, s := range []*plain{near, far} {
				l, ok := tunnel.LinkOf(s)
				if ok != (tc.want > 0) || l.Window != tc.want || l.Addr == nil {
					t.Errorf("link: %+v, %t; want a window of %v", l, ok, tc.want)
				}
				if p := s.Peer(); p.Transport != "plain" || p.TLS == nil || len(p.TLS.PeerCertificates) == 0 {
					t.Errorf("peer: %+v", p)
				}
			}
			said(t, near, far, "there")
			said(t, far, near, "and back")
			if err := tunnel.Move(within(t), near); (err == nil) != (tc.want > 0) {
				t.Errorf("move: %v", err)
			}
			if got := log.String(); (tc.notice == "") == strings.Contains(got, "will end with its connection") || !strings.Contains(got, tc.notice) {
				t.Errorf("log: %q; want %q", got, tc.notice)
			}
		})
	}
}

// lines is a log that can be looked at.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// A session goes on over another connection, the handshake of which is a
// resumption as long as the server's tickets are good and the certificate is.
func TestResumesWithTicket(t *testing.T) {
	ca := newAuthority(t, "ca")
	for _, disabled := range []bool{false, true} {
		resumed := make(chan bool, 100)
		conf := ca.server(t)
		conf.SessionTicketsDisabled = disabled
		srv := serve(t, tunnel.Options{TLS: conf, Link: tunnel.LinkOptions{Resume: func(p tunnel.Peer) error {
			if cn := p.TLS.PeerCertificates[0].Subject.CommonName; cn != "system:node:a" {
				t.Errorf("resumed by %s", cn)
			}
			resumed <- p.TLS.DidResume
			return nil
		}}})
		relay := tunneltest.NewRelay(t, srv.addr)
		near := dial(t, relay.Addr(), tunnel.Options{TLS: ca.client(t, "a")})
		far := srv.next(t)
		for range 3 {
			said(t, near, far, "before")
			said(t, far, near, "likewise") // the ticket has come, too
			relay.Cut()
			said(t, near, far, "after")
			if did := <-resumed; did == disabled {
				t.Errorf("tickets disabled: %t, handshake resumed: %t", disabled, did)
			}
		}
		if l := near.Link(); l.Resumes < 3 {
			t.Errorf("link: %+v", l)
		}
	}
}

// A ticket vouches for nothing: what is checked of a certificate at first is
// checked at each resumption.
func TestTicketVouchesForNothing(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	for _, tc := range []struct {
		name string
		turn func(conf *tls.Config, now *time.Time)
	}{
		{"expired certificate", func(_ *tls.Config, now *time.Time) { *now = now.Add(2 * time.Hour) }},
		{"authority not trusted any more", func(conf *tls.Config, _ *time.Time) { conf.ClientCAs = other.pool() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var (
				mu   sync.Mutex
				now  = time.Now()
				base = ca.server(t)
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
			client := ca.client(t, "a")
			client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
			first := dial(t, srv.addr, tunnel.Options{TLS: client})
			said(t, srv.next(t), first, "and a ticket")
			second := dial(t, srv.addr, tunnel.Options{TLS: client})
			if !srv.next(t).Peer().TLS.DidResume || !second.Peer().TLS.DidResume {
				t.Fatal("the second session was to resume the first one's handshake")
			}
			mu.Lock()
			tc.turn(base, &now)
			mu.Unlock()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if s, err := protocol().Dial(ctx, srv.addr, tunnel.Options{TLS: client}); err == nil {
				t.Error("the ticket was taken for a good certificate")
				_ = s.Close()
			} else if ctx.Err() != nil {
				t.Errorf("the client does not learn that it is refused: %v", err)
			}
		})
	}
}

// A link goes on for its identity only, however good another one's certificate
// is, and a new key is the same identity.
func TestIdentity(t *testing.T) {
	ca := newAuthority(t, "ca")
	for _, tc := range []struct {
		name, then string
		same       bool
	}{
		{"renewed certificate", "a", true},
		{"another node", "b", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := serve(t, tunnel.Options{TLS: ca.server(t)})
			relay := tunneltest.NewRelay(t, srv.addr)
			client := ca.client(t, "a")
			shown := &client.Certificates[0]
			certs := []tls.Certificate{*shown, ca.issue(t, "system:node:"+tc.then, time.Time{})}
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
			near := dial(t, relay.Addr(), tunnel.Options{TLS: client})
			far := srv.next(t)
			said(t, near, far, "before")
			relay.Cut()
			if tc.same {
				said(t, near, far, "after")
				return
			}
			_ = near.Conn().SetReadDeadline(time.Now().Add(patience))
			if _, err := near.Conn().Read(make([]byte, 1)); tunnel.CodeOf(err) != tunnel.Lost {
				t.Errorf("read: %v", err)
			}
			if l := far.Link(); l.Resumes != 0 {
				t.Errorf("the other node got the link: %+v", l)
			}
		})
	}
}

// noTickets keeps none.
type noTickets struct{}

func (noTickets) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (noTickets) Put(string, *tls.ClientSessionState)        {}

// Who may not resume any more learns it, and neither end waits for the window.
func TestResumeRefused(t *testing.T) {
	ca := newAuthority(t, "ca")
	srv := serve(t, tunnel.Options{TLS: ca.server(t), Link: tunnel.LinkOptions{
		DetachWindow: time.Hour, Resume: func(tunnel.Peer) error { return errors.New("node is deleted") },
	}})
	relay := tunneltest.NewRelay(t, srv.addr)
	near := dial(t, relay.Addr(), tunnel.Options{TLS: ca.client(t, "a"), Link: tunnel.LinkOptions{DetachWindow: time.Hour}})
	far := srv.next(t)
	said(t, near, far, "before")
	relay.Cut()
	for _, s := range []*plain{near, far} {
		_ = s.Conn().SetReadDeadline(time.Now().Add(patience))
		_, err := s.Conn().Read(make([]byte, 1))
		if tunnel.CodeOf(err) != tunnel.Denied || tunnel.CodeOf(Lost(err)) != tunnel.Denied {
			t.Errorf("read: %v", err)
		}
		if strings.Contains(err.Error(), "deleted") == (s == near) {
			t.Errorf("the reason is for the server's log: %v", err)
		}
	}
}

// A server that came back without links ends the session at once.
func TestServerDoesNotResumeAnyMore(t *testing.T) {
	ca := newAuthority(t, "ca")
	conf := ca.server(t)
	srv := serve(t, tunnel.Options{TLS: conf})
	old := serve(t, tunnel.Options{TLS: conf, Link: tunnel.LinkOptions{DetachWindow: -1}})
	var mu sync.Mutex
	addr := srv.addr
	var last net.Conn
	near := dial(t, addr, tunnel.Options{TLS: ca.client(t, "a"), Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		last = c
		return c, err
	}})
	said(t, near, srv.next(t), "before")
	mu.Lock()
	addr = old.addr
	_ = last.Close() // what the test is about
	mu.Unlock()
	_ = near.Conn().SetReadDeadline(time.Now().Add(patience))
	if _, err := near.Conn().Read(make([]byte, 1)); tunnel.CodeOf(err) != tunnel.Lost || !strings.Contains(err.Error(), "does not resume any more") {
		t.Errorf("read: %v", err)
	}
}

func TestRefusedAtOnce(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	good := ca.server(t)
	open := good.Clone()
	open.ClientAuth = tls.NoClientCert
	expired := ca.client(t, "a")
	expired.Certificates = []tls.Certificate{ca.issue(t, "system:node:a", time.Now().Add(-time.Minute))}
	for _, tc := range []struct {
		name   string
		server *tls.Config
		client *tls.Config
		want   string
	}{
		{"no configuration", good, nil, "no TLS configuration"},
		{"server of another authority", good, other.client(t, "a"), "unknown authority"},
		{"client of another authority", good, func() *tls.Config {
			c := other.client(t, "a")
			c.RootCAs = ca.pool()
			return c
		}(), "certificate"},
		{"expired client", good, expired, "certificate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := serve(t, tunnel.Options{TLS: tc.server})
			s, err := protocol().Dial(within(t), srv.addr, tunnel.Options{TLS: tc.client})
			if err == nil {
				_ = s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "connect to "+srv.addr+": ") {
				t.Errorf("%v; want %q", err, tc.want)
			}
		})
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if _, err := protocol().Listen(ln, tunnel.Options{TLS: open}); err == nil {
		t.Error("listened without asking for client certificates")
	}
	var unknown x509.UnknownAuthorityError
	srv := serve(t, tunnel.Options{TLS: good})
	if _, err := protocol().Dial(within(t), srv.addr, tunnel.Options{TLS: other.client(t, "a")}); !errors.As(err, &unknown) {
		t.Errorf("untyped: %v", err)
	}
}

// A peer of another protocol is not taken for one of this.
func TestWrongALPN(t *testing.T) {
	ca := newAuthority(t, "ca")
	srv := serve(t, tunnel.Options{TLS: ca.server(t)})
	for _, names := range [][]string{nil, {"http/1.1"}, {tunnel.ALPN}} {
		conf := ca.client(t, "a")
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
	case <-srv.sessions:
		t.Error("it has a session")
	default:
	}
}
