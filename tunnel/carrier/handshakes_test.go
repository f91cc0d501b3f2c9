package carrier

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestHandshakesAreCounted(t *testing.T) {
	ca, other := tunneltest.NewAuthority(t, "ca"), tunneltest.NewAuthority(t, "other")
	srv := serve(t, tunnel.Options{TLS: ca.Server(t)})
	for range 3 {
		dial(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "a")})
	}
	stranger := other.Client(t, "a")
	stranger.RootCAs = ca.Pool()
	if _, err := reach(t, srv.addr, tunnel.Options{TLS: stranger}); err == nil {
		t.Error("a stranger is let in")
	}
	srv.stop()
	if got := srv.Handshakes(); got != (tunnel.Handshakes{Done: 3, Failed: 1}) {
		t.Errorf("%+v", got)
	}
}

// A handshake that leads to no session is counted once more, and logged once.
func TestHandshakesForNothing(t *testing.T) {
	ca, log := tunneltest.NewAuthority(t, "ca"), new(lines)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	why := make(chan error, 2)
	why <- errors.New("nonsense")
	why <- fmt.Errorf("stale: %w", ErrLogged)
	l, err := Listen(ln, "test", []string{spoken}, Bare, tunnel.Options{TLS: ca.Server(t), Log: log.logger()}, func(_ context.Context, c *tls.Conn) (tunnel.Session, error) {
		_ = c.NetConn().Close()
		return nil, <-why
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- l.Serve(ctx, nil) }()
	for range 2 {
		_, _ = reach(t, ln.Addr().String(), tunnel.Options{TLS: ca.Client(t, "a")}) // it is not let in
	}
	tunneltest.Eventually(t, "counted", func() bool { return l.Handshakes().NoSession == 2 })
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if got := l.Handshakes(); got != (tunnel.Handshakes{Done: 2, NoSession: 2}) {
		t.Errorf("%+v", got)
	}
	if said := log.String(); strings.Count(said, "no session came about") != 1 || !strings.Contains(said, "nonsense") {
		t.Error(said)
	}
}
