package tunneltest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	tunneltest.Run(t, new(tunneltest.Exchange).Transport().Can, func(_ testing.TB, o tunnel.Options) (tunnel.Session, tunnel.Session) {
		return tunneltest.Pair(tunnel.Peer{Addr: memnet.Addr("a")}, tunnel.Peer{Addr: memnet.Addr("b")}, o)
	})
}
