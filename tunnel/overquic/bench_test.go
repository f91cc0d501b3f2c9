package overquic

import (
	"testing"

	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func BenchmarkSession(b *testing.B) { tunneltest.Benchmark(b, overLoopback) }
