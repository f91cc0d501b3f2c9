// Paths that work again, and how long a stream waits then: go test -run '^$' -bench
// Return -benchtime 1x ./e2e.

package e2e

import (
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

// deadFor is for how long a path is dead, each time; all of it within the detach
// window.
var deadFor = []time.Duration{41 * time.Second, 43300 * time.Millisecond, 46700 * time.Millisecond, 50 * time.Second}

// BenchmarkReturn has a path of 50 ms be dead, with a keystroke on its way, and
// measures when that is answered after the path works again: the mark is one second
// and four round trips.
func BenchmarkReturn(b *testing.B) {
	needWAN(b)
	for _, transport := range resuming {
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

// BenchmarkForgotten has a NAT forget every connection without a word, while streams
// move, and while nothing does: how long until they go on, and until a new dial is
// answered.
func BenchmarkForgotten(b *testing.B) {
	needWAN(b)
	for _, transport := range resuming {
		b.Run(transport, func(b *testing.B) {
			for b.Loop() {
				benchForgotten(b, transport)
			}
		})
	}
}

func benchForgotten(b *testing.B, transport string) {
	n, open := tunnelPath(b, "cubic", transport)
	shape := emulator.Shape{Delay: 25 * time.Millisecond, Rate: 100e6 / 8}
	must(b, n.Shape(b.Context(), shape, shape))
	wanPing(b, wanOpen(b, open, 'E'))
	forget := func(what string, move func() (awake func())) {
		awake := move()
		<-time.After(wanWarm)
		must(b, n.Forget(b.Context()))
		began := time.Now()
		if awake != nil {
			awake()
			b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-"+what)
		}
		wanPing(b, wanOpen(b, open, 'E'))
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-dial-beside-"+what)
	}
	for _, pause := range []time.Duration{0, 50 * time.Millisecond, 500 * time.Millisecond} {
		forget(fmt.Sprintf("to-node-each-%v", pause), func() func() { return wanUpload(b, open, pause) })
	}
	forget("from-node", func() func() { return wanDownload(b, open) })
	forget("quiet", func() func() { return nil })
}

// onItsWay is how long what was sent before may still arrive.
const onItsWay = 500 * time.Millisecond

// wanUpload sends to the node, a block and then a pause. What it returns waits until
// more has arrived.
func wanUpload(b *testing.B, open wanPath, pause time.Duration) func() {
	var count wanCount
	c := wanOpen(b, open, 'U')
	block := make([]byte, 16<<10)
	if pause > 0 {
		block = block[:16]
	}
	go func() { // until c is closed
		for {
			if _, err := c.Write(block); err != nil {
				return
			}
			<-time.After(pause)
		}
	}()
	go count.follow(c) // likewise
	return func() {
		<-time.After(onItsWay)
		for from := count.get(); count.get() <= from; {
			<-time.After(time.Millisecond)
		}
		_ = c.Close()
	}
}

// wanDownload has the node send, and returns likewise.
func wanDownload(b *testing.B, open wanPath) func() {
	var got atomic.Uint64
	c := wanOpen(b, open, 'D')
	go func() { // until c is closed
		buf := make([]byte, 64<<10)
		for {
			n, err := c.Read(buf)
			if got.Add(uint64(n)); err != nil {
				return
			}
		}
	}()
	return func() {
		<-time.After(onItsWay)
		for from := got.Load(); got.Load() <= from; {
			<-time.After(time.Millisecond)
		}
		_ = c.Close()
	}
}
