package overquic

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func BenchmarkSession(b *testing.B) { tunneltest.Benchmark(b, overLoopback) }

// How long a stream waits when a path works again that was dead for a minute, on
// which a round trip takes 50 ms: the median and the longest of some sessions.
func BenchmarkReturn(b *testing.B) {
	for _, way := range []string{"upload", "download", "word"} {
		b.Run(way, func(b *testing.B) {
			var waits []time.Duration
			for b.Loop() {
				waits = append(waits, returns(b, way)...)
			}
			slices.Sort(waits)
			b.ReportMetric(float64(waits[len(waits)/2].Milliseconds()), "p50-ms")
			b.ReportMetric(float64(waits[len(waits)-1].Milliseconds()), "max-ms")
		})
	}
}

// returns has sessions' paths be dead for a minute and some more, each a different
// while, and says how long each session's stream waited after that.
func returns(b *testing.B, way string) []time.Duration {
	const sessions = 8
	var (
		wg    sync.WaitGroup
		waits [sessions]time.Duration
	)
	for i := range waits {
		near, far, r := relayed(b, tunnel.Options{Link: tunnel.LinkOptions{DetachWindow: 5 * time.Minute}})
		r.lag.Store(int64(50 * time.Millisecond))
		prepared(b, near)
		if way == "download" {
			near, far = far, near
		}
		var arrived func() bool
		if way == "word" {
			out, in := open(b, near, far)
			var heard atomic.Bool
			arrived = heard.Load
			defer func() { _, _ = out.Close(), in.Close() }()
			r.hole(true)
			_, _ = out.Write([]byte("x")) // what has not come will be missed
			wg.Go(func() {
				n, _ := in.Read(make([]byte, 1))
				heard.Store(n > 0)
			})
		} else {
			f := newFlow(b, near, far, uint64(i))
			f.goesOn(b, 64<<10)
			r.hole(true)
			before := sync.OnceValue(f.count) // once the path has been dead for long
			arrived = func() bool { return f.count() > before() }
			defer f.end(b)
		}
		dead := time.NewTimer(time.Minute + time.Duration(i)*1300*time.Millisecond)
		wg.Go(func() {
			<-dead.C
			_ = arrived()
			start := time.Now()
			r.hole(false)
			await(b, "the stream", arrived)
			waits[i] = time.Since(start)
			println(start.UnixMilli()%1000000, r.addr(), "HEALED; waited", waits[i].Milliseconds())
		})
	}
	wg.Wait()
	return waits[:]
}
