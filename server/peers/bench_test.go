package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth"
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

// BenchmarkBulk is the CPU time per GB that a node sends, of everything in this process:
// node, servers, and reader. The cost of a hop is hop minus direct. Compare it with relay
// minus plain: two hops of which one has TLS, without a multiplexer.
func BenchmarkBulk(b *testing.B) {
	f := newFleet(b, "a", "b")
	f.servers["b"].join("n", func(ctx context.Context, r *tunnel.Request) {
		if st, err := r.Accept(); err == nil {
			send(ctx, st)
		}
	})
	f.servers["a"].knows("n", 1)
	for _, way := range []struct {
		name string
		open func() (net.Conn, error)
	}{
		{"plain", func() (net.Conn, error) { return net.Dial("tcp", source(b)) }},
		{"relay", func() (net.Conn, error) { return net.Dial("tcp", relay(b, f, source(b))) }},
		{"direct", func() (net.Conn, error) { return f.servers["b"].open("n:1") }},
		{"hop", func() (net.Conn, error) { return f.servers["a"].open("n:1") }},
	} {
		b.Run(way.name, func(b *testing.B) {
			c, err := way.open()
			if err != nil {
				b.Fatal(err)
			}
			defer tunnel.Abort(c)
			const chunk = 1 << 20
			read(b, c, 16*chunk) // until windows are open
			b.SetBytes(chunk)
			before := cpu(b)
			for b.Loop() {
				read(b, c, chunk)
			}
			b.ReportMetric((cpu(b)-before).Seconds()/(float64(b.N)*chunk/1e9), "cpu-s/GB")
		})
	}
}

// send sends until c fails.
func send(ctx context.Context, c net.Conn) {
	var err error
	for buf := make([]byte, 64<<10); err == nil && ctx.Err() == nil; {
		_, err = c.Write(buf)
	}
	_ = tunnel.Abort(c)
}

// source is the address of a server that sends bytes.
func source(b *testing.B) string {
	return serve(b, func(c net.Conn) { send(b.Context(), c) })
}

// relay is the address of two relays with TLS between them, in front of target.
func relay(b *testing.B, f *fleet, target string) string {
	serving, client := f.server("kubernetes"), f.client("relay")
	far := serve(b, func(c net.Conn) {
		conf := auth.ServerTLS(
			func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving, nil },
			func() (*x509.CertPool, error) { return f.clients.Pool(), nil },
		)
		join(tls.Server(c, conf), target, nil)
	})
	show := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return client, nil }
	return serve(b, func(c net.Conn) { join(c, far, auth.ClientTLS(show, f.names.Pool(), "kubernetes")) })
}

// join copies between c and what is at addr until either ends.
func join(c net.Conn, addr string, conf *tls.Config) {
	defer c.Close()
	to, err := net.Dial("tcp", addr)
	if err != nil {
		return // the reader notices
	}
	if conf != nil {
		to = tls.Client(to, conf)
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, c)
		_ = to.Close()
	}()
	_, _ = io.Copy(c, to)
}

// serve serves each connection by f until the end of b, and returns the address.
func serve(b *testing.B, f func(net.Conn)) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f(c)
		}
	}()
	return l.Addr().String()
}

func read(b *testing.B, c net.Conn, n int64) {
	b.Helper()
	if _, err := io.CopyN(io.Discard, c, n); err != nil {
		b.Fatal(err)
	}
}

// cpu is the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
