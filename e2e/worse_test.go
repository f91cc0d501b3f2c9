// Links that get worse, and what of their rate each transport keeps: go test -run
// '^$' -bench Worse -benchtime 1x ./e2e.

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab"
	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

// fair is a link of 20 ms and 100 Mbit/s each way, and worse are what becomes of it.
var fair = emulator.Shape{Delay: 10 * time.Millisecond, Rate: 100e6 / 8}

// worseSpan is for how long each is measured.
const worseSpan = 5 * time.Second

var worse = []struct {
	name string
	do   func(*emulator.Shape)
}{
	{"fair", func(*emulator.Shape) {}},
	{"loss-1%", func(s *emulator.Shape) { s.Loss = 0.01 }},
	{"loss-5%", func(s *emulator.Shape) { s.Loss = 0.05 }},
	{"loss-20%", func(s *emulator.Shape) { s.Loss = 0.2 }},
	{"reorder-5%", func(s *emulator.Shape) { s.Reorder = 0.05 }},
	{"duplicate-5%", func(s *emulator.Shape) { s.Duplicate = 0.05 }},
	{"corrupt-1%", func(s *emulator.Shape) { s.Corrupt = 0.01 }},
	{"jitter-500ms", func(s *emulator.Shape) { s.Jitter = 500 * time.Millisecond }},
}

// BenchmarkWorse measures what one upload and sixteen get of each link, over a
// connection of its own for each as well as through the tunnel.
func BenchmarkWorse(b *testing.B) {
	needWAN(b)
	for _, congestion := range []string{"cubic", "bbr"} {
		for _, transport := range []string{"tcp", "qmux", "yamux", "h2", "quic"} {
			if congestion != "cubic" && transport != "tcp" && transport != "qmux" && transport != "yamux" {
				continue // QUIC has one of its own, and h2 is to yamux as it is with cubic
			}
			b.Run(congestion+"/"+transport, func(b *testing.B) {
				for b.Loop() {
					benchWorse(b, congestion, transport)
				}
			})
		}
	}
}

func benchWorse(b *testing.B, congestion, transport string) {
	var n *lab.Node
	var open wanPath
	if transport == "tcp" {
		n, open = plainPath(b, congestion, 19*len(worse))
	} else {
		n, open = tunnelPath(b, congestion, transport)
	}
	for _, w := range worse {
		shape := fair
		w.do(&shape)
		for _, streams := range []int{1, 16} {
			// Each begins on a link that has been left in peace.
			if err := n.Shape(b.Context(), fair, fair); err != nil {
				b.Fatal(err)
			}
			_ = wanOpen(b, open, 'E').Close()
			if err := n.Shape(b.Context(), shape, shape); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(wanBulk(b, open, streams, func() { <-time.After(worseSpan) }), fmt.Sprintf("Mbit/s-%s-%d", w.name, streams))
		}
	}
}
