package overquic

import (
	"net"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// overLoopback makes a session over UDP.
func overLoopback(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
	t.Helper()
	o.TLS = tunneltest.TLS(t)
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenPacket(pc, o)
	if err != nil {
		t.Fatal(err)
	}
	accepted := tunneltest.Serve(t, l)
	dialer, err = Dial(t.Context(), l.Addr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	return dialer, <-accepted
}

func TestConformance(t *testing.T) { tunneltest.Run(t, Transport().Can, overLoopback) }
