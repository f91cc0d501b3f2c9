package overquic

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

// benchPair answers every request at the accepting end with f.
func benchPair(b *testing.B, f func(tunnel.Stream)) tunnel.Session {
	b.Helper()
	dialer, accepter := overLoopback(b, tunnel.Options{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = tunnel.Serve(b.Context(), accepter, func(_ context.Context, r *tunnel.Request) { // the dialer notices
			if st, err := r.Accept(nil); err == nil {
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

// From Connect to the first byte back.
func BenchmarkDial(b *testing.B) {
	s := benchPair(b, func(st tunnel.Stream) { _, _ = st.Write([]byte{1}) })
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

func BenchmarkRoundTrip(b *testing.B) {
	s := benchPair(b, func(st tunnel.Stream) { _, _ = io.Copy(st, st) })
	st, err := tunnel.Connect(b.Context(), s, "tcp", "target:1")
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 1)
	for b.Loop() {
		if _, err := st.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(st, buf); err != nil {
			b.Fatal(err)
		}
	}
	_ = st.Close()
}

func BenchmarkThroughput(b *testing.B) {
	for _, streams := range []int{1, 16} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			s := benchPair(b, discard)
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
					for range work {
						if _, err := st.Write(buf); err != nil {
							b.Error(err)
							return
						}
					}
					_ = st.Close()
				})
			}
			b.SetBytes(size)
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
		})
	}
}

// What an idle session costs, both ends and their TLS included.
func BenchmarkIdleSession(b *testing.B) {
	const n = 100
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := used()
	for range n {
		dialer, accepter := overLoopback(b, tunnel.Options{})
		defer accepter.Close()
		defer dialer.Close()
	}
	for b.Loop() {
	}
	b.ReportMetric(float64(used()-before)/n/1024, "KiB/session")
}
