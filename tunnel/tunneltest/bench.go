// The benchmarks that every transport runs, so that their figures compare.

package tunneltest

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

// Benchmark measures dials, round trips, throughput and the memory of an idle
// session of a transport.
func Benchmark(b *testing.B, pair Make) {
	b.Run("dial", func(b *testing.B) { benchDial(b, pair) })
	for _, streams := range []int{1, 64} {
		b.Run(fmt.Sprintf("round-trip/streams=%d", streams), func(b *testing.B) { benchRoundTrip(b, pair, streams) })
	}
	for _, streams := range []int{1, 16} {
		b.Run(fmt.Sprintf("throughput/streams=%d", streams), func(b *testing.B) { benchThroughput(b, pair, streams) })
	}
	b.Run("idle-session", func(b *testing.B) { benchIdle(b, pair) })
}

// benchPair answers every request at the accepting end with f.
func benchPair(b *testing.B, pair Make, f func(tunnel.Stream)) tunnel.Session {
	b.Helper()
	dialer, accepter := pair(b, tunnel.Options{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = ServeRequests(b.Context(), accepter, func(_ context.Context, r *tunnel.Request) { // the dialer notices
			if st, err := r.Accept(); err == nil {
				f(st)
				_ = st.Close()
			}
		})
	})
	b.Cleanup(func() {
		_ = dialer.Close()
		wg.Wait()
	})
	return dialer
}

func discard(st tunnel.Stream) {
	buf := make([]byte, 64<<10)
	for {
		if _, err := st.Read(buf); err != nil {
			return
		}
	}
}

// benchDial goes from Connect to the first byte back.
func benchDial(b *testing.B, pair Make) {
	s := benchPair(b, pair, func(st tunnel.Stream) { _, _ = st.Write([]byte{1}) })
	buf := make([]byte, 1)
	for b.Loop() {
		st, err := tunnel.Connect(b.Context(), s, "tcp", "target:1")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(st, buf); err != nil {
			b.Fatal(err)
		}
		_ = st.Close()
	}
}

// benchRoundTrip has a byte come back on each of so many streams, over and over.
func benchRoundTrip(b *testing.B, pair Make, streams int) {
	s := benchPair(b, pair, func(st tunnel.Stream) { _, _ = io.Copy(st, st) })
	work := make(chan struct{}, streams)
	var wg sync.WaitGroup
	for range streams {
		st, err := tunnel.Connect(b.Context(), s, "tcp", "target:1")
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			buf := make([]byte, 1)
			for range work { // to the end, or the loop below waits for ever
				if _, err := st.Write(buf); err != nil {
					b.Error(err)
				} else if _, err := io.ReadFull(st, buf); err != nil {
					b.Error(err)
				}
			}
			_ = st.Close()
		})
	}
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
}

func benchThroughput(b *testing.B, pair Make, streams int) {
	s := benchPair(b, pair, discard)
	const size = 64 << 10
	work := make(chan struct{})
	var wg sync.WaitGroup
	for range streams {
		st, err := tunnel.Connect(b.Context(), s, "tcp", "target:1")
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			buf := make([]byte, size)
			for range work { // to the end, or the loop below waits for ever
				if _, err := st.Write(buf); err != nil {
					b.Error(err)
				}
			}
			_ = st.Close()
		})
	}
	b.SetBytes(size)
	start, n := CPU(), 0
	for b.Loop() {
		work <- struct{}{}
		n++
	}
	close(work)
	wg.Wait()
	b.ReportMetric((CPU()-start).Seconds()*1e9/float64(n*size), "CPU-s/GB")
}

// benchIdle measures what an idle session costs, both ends and their TLS included.
func benchIdle(b *testing.B, pair Make) {
	const n = 100
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := used()
	for range n {
		dialer, accepter := pair(b, tunnel.Options{})
		b.Cleanup(func() { _, _ = dialer.Close(), accepter.Close() })
	}
	for b.Loop() {
	}
	b.ReportMetric(float64(used()-before)/n/1024, "KiB/session")
}
