package carrier

import (
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

func TestHandshakesAreCounted(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	srv := serve(t, tunnel.Options{TLS: ca.server(t)})
	for range 3 {
		dial(t, srv.addr, tunnel.Options{TLS: ca.client(t, "a")})
	}
	stranger := other.client(t, "a")
	stranger.RootCAs = ca.pool()
	if err := try(t, srv.addr, stranger); err == nil {
		t.Error("a stranger is let in")
	}
	srv.stop()
	if got := srv.Handshakes(); got != (tunnel.Handshakes{Done: 3, Failed: 1}) {
		t.Errorf("%+v", got)
	}
}
