package carrier

import (
	"context"
	"crypto/tls"
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

// linkSaid checks that what one end writes is what the other reads.
func linkSaid(t *testing.T, from, to *plain, text string) {
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
			var log lines
			srv := serveLinks(t, tunnel.Options{TLS: ca.Server(t), Link: tunnel.LinkOptions{DetachWindow: tc.server}, Log: log.logger()})
			near := dialLink(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "a"), Link: tunnel.LinkOptions{DetachWindow: tc.client}, Log: log.logger()})
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
			linkSaid(t, near, far, "there")
			linkSaid(t, far, near, "and back")
			if err := tunnel.Move(within(t), near); (err == nil) != (tc.want > 0) {
				t.Errorf("move: %v", err)
			}
			if got := log.String(); (tc.notice == "") == strings.Contains(got, "will end with its connection") || !strings.Contains(got, tc.notice) {
				t.Errorf("log: %q; want %q", got, tc.notice)
			}
		})
	}
}

// A session goes on over another connection, the handshake of which is a
// resumption as long as the server's tickets are good and the certificate is.
func TestResumesWithTicket(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	for _, disabled := range []bool{false, true} {
		resumed := make(chan bool, 100)
		conf := ca.Server(t)
		conf.SessionTicketsDisabled = disabled
		srv := serveLinks(t, tunnel.Options{TLS: conf, Link: tunnel.LinkOptions{Resume: func(p tunnel.Peer) error {
			if cn := p.TLS.PeerCertificates[0].Subject.CommonName; cn != "system:node:a" {
				t.Errorf("resumed by %s", cn)
			}
			resumed <- p.TLS.DidResume
			return nil
		}}})
		relay := tunneltest.NewRelay(t, srv.addr)
		near := dialLink(t, relay.Addr(), tunnel.Options{TLS: ca.Client(t, "a")})
		far := srv.next(t)
		for range 3 {
			linkSaid(t, near, far, "before")
			linkSaid(t, far, near, "likewise") // the ticket has come, too
			relay.Cut()
			linkSaid(t, near, far, "after")
			if did := <-resumed; did == disabled {
				t.Errorf("tickets disabled: %t, handshake resumed: %t", disabled, did)
			}
		}
		if l := near.Link(); l.Resumes < 3 {
			t.Errorf("link: %+v", l)
		}
	}
}

// A link goes on for its identity only, however good another one's certificate
// is, and a new key is the same identity.
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
			srv := serveLinks(t, tunnel.Options{TLS: ca.Server(t)})
			relay := tunneltest.NewRelay(t, srv.addr)
			client := ca.Client(t, "a")
			shown := &client.Certificates[0]
			certs := []tls.Certificate{*shown, ca.Issue(t, "system:node:"+tc.then, time.Time{})}
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
			near := dialLink(t, relay.Addr(), tunnel.Options{TLS: client})
			far := srv.next(t)
			linkSaid(t, near, far, "before")
			relay.Cut()
			if tc.same {
				linkSaid(t, near, far, "after")
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
	ca := tunneltest.NewAuthority(t, "ca")
	srv := serveLinks(t, tunnel.Options{TLS: ca.Server(t), Link: tunnel.LinkOptions{
		DetachWindow: time.Hour, Resume: func(tunnel.Peer) error { return errors.New("node is deleted") },
	}})
	relay := tunneltest.NewRelay(t, srv.addr)
	near := dialLink(t, relay.Addr(), tunnel.Options{TLS: ca.Client(t, "a"), Link: tunnel.LinkOptions{DetachWindow: time.Hour}})
	far := srv.next(t)
	linkSaid(t, near, far, "before")
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
	ca := tunneltest.NewAuthority(t, "ca")
	conf := ca.Server(t)
	srv := serveLinks(t, tunnel.Options{TLS: conf})
	old := serveLinks(t, tunnel.Options{TLS: conf, Link: tunnel.LinkOptions{DetachWindow: -1}})
	var mu sync.Mutex
	addr := srv.addr
	var last net.Conn
	near := dialLink(t, addr, tunnel.Options{TLS: ca.Client(t, "a"), Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		last = c
		return c, err
	}})
	linkSaid(t, near, srv.next(t), "before")
	mu.Lock()
	addr = old.addr
	_ = last.Close() // what the test is about
	mu.Unlock()
	_ = near.Conn().SetReadDeadline(time.Now().Add(patience))
	if _, err := near.Conn().Read(make([]byte, 1)); tunnel.CodeOf(err) != tunnel.Lost || !strings.Contains(err.Error(), "does not resume any more") {
		t.Errorf("read: %v", err)
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

// A linkServer is a listener and the sessions that it makes.
type linkServer struct {
	addr     string
	sessions chan *plain
	listener *listener
	stop     func() // and wait
}

// serveLinks listens until the test is over or stop is called.
func serveLinks(t testing.TB, o tunnel.Options) *linkServer {
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
func (l *listener) run(t testing.TB) *linkServer {
	t.Helper()
	s := &linkServer{addr: l.Addr().String(), sessions: make(chan *plain, 100), listener: l}
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

// dialLink makes a session that is closed with the test.
func dialLink(t testing.TB, addr string, o tunnel.Options) *plain {
	t.Helper()
	s, err := protocol().Dial(within(t), addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.(*plain)
}

// next is the session that the server has made.
func (s *linkServer) next(t testing.TB) *plain {
	t.Helper()
	select {
	case x := <-s.sessions:
		return x
	case <-within(t).Done():
		t.Fatal("no session at the server")
		return nil
	}
}
