package overyamux

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	tunneltest.Run(t, Transport().Can, tunneltest.OverTCP(Transport()))
}

func TestRefusals(t *testing.T) { tunneltest.RunRefusals(t, tunneltest.OverTCP(Transport())) }

func BenchmarkSession(b *testing.B) { tunneltest.Benchmark(b, tunneltest.OverTCP(Transport())) }
