package lanes

import (
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/qmux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// What lanes cost beside the session that they are made of.
func BenchmarkQMux(b *testing.B) {
	mk := overLoopback(qmux.Transport())
	b.Run("plain", func(b *testing.B) {
		tunneltest.Benchmark(b, func(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
			dialer, accepter, err := mk(t.Context(), t, o)
			if err != nil {
				t.Fatal(err)
			}
			return dialer, accepter
		})
	})
	b.Run("lanes", func(b *testing.B) {
		tunneltest.Benchmark(b, func(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
			return pair(t, mk, o, Config{RTT: func() time.Duration { return 100 * time.Microsecond }})
		})
	})
}
