package overyamux

import (
	"net"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/mux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// overMemory makes a session without TLS.
func overMemory(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
	t.Helper()
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	return overConns(t, a, b, o)
}

func overConns(_ testing.TB, a, b net.Conn, o tunnel.Options) (dialer, accepter *mux.Session) {
	return newSession(carrier.NewPipe(a, tunnel.Peer{Addr: a.RemoteAddr()}), true, o),
		newSession(carrier.NewPipe(b, tunnel.Peer{Addr: b.RemoteAddr()}), false, o)
}

func TestConformance(t *testing.T) {
	t.Run("TLS", func(t *testing.T) { tunneltest.Run(t, Transport().Can, tunneltest.OverTCP(Transport())) })
	t.Run("Memory", func(t *testing.T) { tunneltest.Run(t, Transport().Can, overMemory) })
}

func TestResumes(t *testing.T) { tunneltest.RunResume(t, tunneltest.OverRelay(Transport())) }

func TestRefusals(t *testing.T) {
	tunneltest.RunRefusals(t, tunneltest.OverTCP(Transport()))
	tunneltest.RunResumeRefusals(t, tunneltest.OverRelay(Transport()))
}
