// Paths that work again, and how long a stream waits then: go test -run '^$' -bench
// Return -benchtime 1x ./e2e.

package e2e

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser/e2e/lab/emulator"
)

// deadFor is for how long a path is dead, each time; all of it within the detach
// window.
var deadFor = []time.Duration{41 * time.Second, 43300 * time.Millisecond, 46700 * time.Millisecond, 50 * time.Second}

// BenchmarkReturn has a path of 50 ms be dead, with a keystroke on its way, and
// measures when that is answered after the path works again: the mark is one second
// and four round trips.
func BenchmarkReturn(b *testing.B) {
	needWAN(b)
	for _, transport := range everyTransport {
		b.Run(transport, func(b *testing.B) {
			for b.Loop() {
				benchReturn(b, transport)
			}
		})
	}
}

func benchReturn(b *testing.B, transport string) {
	n, open := tunnelPath(b, "cubic", transport)
	shape := emulator.Shape{Delay: 25 * time.Millisecond, Rate: 100e6 / 8}
	if err := n.Shape(b.Context(), shape, shape); err != nil {
		b.Fatal(err)
	}
	echo := wanOpen(b, open, 'E')
	wanPing(b, echo)
	var waits []time.Duration
	for _, dead := range deadFor {
		if err := n.Cut(b.Context()); err != nil {
			b.Fatal(err)
		}
		if _, err := echo.Write([]byte{1}); err != nil {
			b.Fatal(err)
		}
		<-time.After(dead)
		if err := n.Heal(b.Context()); err != nil {
			b.Fatal(err)
		}
		healed := time.Now()
		if _, err := io.ReadFull(echo, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		waits = append(waits, time.Since(healed))
	}
	slices.Sort(waits)
	b.Logf("%s: %v", transport, waits)
	b.ReportMetric(float64(waits[len(waits)/2].Milliseconds()), "ms-p50")
	b.ReportMetric(float64(waits[len(waits)-1].Milliseconds()), "ms-max")
}
