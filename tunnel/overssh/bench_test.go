// What a dial, a round trip, a byte and an idle session cost.

package overssh

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
)

// benchTarget runs f on what is dialed, for each server.
func benchTarget(b *testing.B, serve func(net.Conn), f func(b *testing.B, d *Session, addr string)) {
	for _, s := range servers {
		b.Run(s.name, func(b *testing.B) {
			l := s.start(b)
			d, stop := run(b, l.config(b))
			ln := listen(b)
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					wg.Go(func() {
						serve(c)
						_ = c.Close()
					})
				}
			})
			b.Cleanup(func() {
				stop()
				_ = ln.Close()
				wg.Wait()
			})
			f(b, d, ln.Addr().String())
		})
	}
}

// From Connect to the first byte back.
func BenchmarkDial(b *testing.B) {
	benchTarget(b, func(c net.Conn) { _, _ = c.Write([]byte{1}) }, func(b *testing.B, d *Session, addr string) {
		buf := make([]byte, 1)
		for b.Loop() {
			st, err := d.Dial(b.Context(), "tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(st, buf); err != nil {
				b.Fatal(err)
			}
			_ = st.Close()
		}
	})
}

func BenchmarkRoundTrip(b *testing.B) {
	benchTarget(b, func(c net.Conn) { _, _ = io.Copy(c, c) }, func(b *testing.B, d *Session, addr string) {
		st, err := d.Dial(b.Context(), "tcp", addr)
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
	})
}

func BenchmarkThroughput(b *testing.B) {
	discard := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	for _, streams := range []int{1, 16} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			benchTarget(b, discard, func(b *testing.B, d *Session, addr string) {
				const size = 64 << 10
				work := make(chan struct{})
				var wg sync.WaitGroup
				for range streams {
					st, err := d.Dial(b.Context(), "tcp", addr)
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
		})
	}
}

// What an idle session costs this end; and the other, with our own server.
func BenchmarkIdleSession(b *testing.B) {
	for _, s := range servers {
		b.Run(s.name, func(b *testing.B) {
			const n = 20
			used := func() uint64 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapInuse + m.StackInuse
			}
			l := s.start(b)
			before := used()
			for range n {
				run(b, l.config(b))
			}
			for b.Loop() {
			}
			b.ReportMetric(float64(used()-before)/n/1024, "KiB/session")
		})
	}
}
