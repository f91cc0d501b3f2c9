package peers

import (
	"context"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// BenchmarkDial is a dial and the first bytes of the answer, through the server that has
// the node and through one that has not.
func BenchmarkDial(b *testing.B) {
	f := newFleet(b, "a", "b")
	f.servers["b"].join("n", echo)
	f.servers["a"].knows("n", 1)
	for _, way := range []struct{ name, through string }{{"direct", "b"}, {"hop", "a"}} {
		b.Run(way.name, func(b *testing.B) {
			var took []time.Duration
			line := make([]byte, len("n:1\n"))
			for b.Loop() {
				began := time.Now()
				c, err := f.servers[way.through].open("n:1")
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, line); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
				_ = c.Close()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
		})
	}
}

// BenchmarkBulk is what a node sends, in CPU seconds per GB of everything in this
// process: node, servers, and reader.
func BenchmarkBulk(b *testing.B) {
	f := newFleet(b, "a", "b")
	f.servers["b"].join("n", func(ctx context.Context, r *tunnel.Request) {
		st, err := r.Accept(nil)
		if err != nil {
			return
		}
		for buf := make([]byte, 64<<10); err == nil && ctx.Err() == nil; {
			_, err = st.Write(buf)
		}
		_ = tunnel.Abort(st)
	})
	f.servers["a"].knows("n", 1)
	for _, way := range []struct{ name, through string }{{"direct", "b"}, {"hop", "a"}} {
		b.Run(way.name, func(b *testing.B) {
			c, err := f.servers[way.through].open("n:1")
			if err != nil {
				b.Fatal(err)
			}
			defer tunnel.Abort(c)
			const chunk = 1 << 20
			b.SetBytes(chunk)
			before := cpu(b)
			for b.Loop() {
				read(b, c, chunk)
			}
			b.ReportMetric((cpu(b)-before).Seconds()/(float64(b.N)*chunk/1e9), "cpu-s/GB")
		})
	}
}

func read(b *testing.B, c net.Conn, n int64) {
	b.Helper()
	if _, err := io.CopyN(io.Discard, c, n); err != nil {
		b.Fatal(err)
	}
}

// cpu is what this process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
