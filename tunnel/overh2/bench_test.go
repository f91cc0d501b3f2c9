package overh2

import (
	"testing"

	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func BenchmarkSession(b *testing.B) { tunneltest.Benchmark(b, tunneltest.OverTCP(Transport())) }
