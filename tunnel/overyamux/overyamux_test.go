package overyamux

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// What callers ask a stream for.
var (
	_ tunnel.BufferReader = (*stream)(nil)
	_ tunnel.Resetter     = (*stream)(nil)
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Run("TLS", func(t *testing.T) { tunneltest.Run(t, Transport().Can, tunneltest.OverTCP(Transport())) })
	t.Run("TLSInTLS", func(t *testing.T) { tunneltest.Run(t, Transport().Can, tunneltest.OverTLSRelay(Transport())) })
}

func TestSilentPeer(t *testing.T) { tunneltest.RunSilence(t, tunneltest.OverRelay(Transport())) }

func TestRefusals(t *testing.T) { tunneltest.RunRefusals(t, tunneltest.OverTCP(Transport())) }

func BenchmarkSession(b *testing.B) { tunneltest.Benchmark(b, tunneltest.OverTCP(Transport())) }
