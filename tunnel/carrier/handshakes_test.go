package carrier

import (
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
