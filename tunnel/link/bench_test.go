// What a link costs above TLS.

package link

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
)

// overTLS makes a connection over TLS and TCP, or a link over one.
func overTLS(b *testing.B, linked bool) (near, far net.Conn) {
	b.Helper()
	conf := testTLS(b)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	registry, err := NewRegistry(RegistryConfig{Identity: func(net.Conn) (string, error) { return "a", nil }})
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		raw, aerr := ln.Accept()
		if aerr != nil {
			b.Error(aerr)
			return
		}
		c := tls.Server(NewBatch(raw), conf)
		aerr = c.HandshakeContext(b.Context())
		if far = c; aerr == nil && linked {
			far, _, aerr = registry.Accept(b.Context(), c)
		}
		if aerr != nil {
			b.Error(aerr)
		}
	})
	dial := func(ctx context.Context) (net.Conn, error) {
		raw, derr := new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
		if derr != nil {
			return nil, derr
		}
		c := tls.Client(NewBatch(raw), conf)
		return c, c.HandshakeContext(ctx)
	}
	if linked {
		near, err = Dial(b.Context(), dial, Config{})
	} else {
		near, err = dial(b.Context())
	}
	wg.Wait()
	if err != nil || b.Failed() {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		wg.Go(func() { _ = near.Close() }) // neither end has more to say
		_ = far.Close()
		wg.Wait()
	})
	return near, far
}

// underYamux opens one stream on each of two connections' ends.
func underYamux(b *testing.B, near, far net.Conn) (net.Conn, net.Conn) {
	b.Helper()
	conf := yamux.DefaultConfig()
	conf.LogOutput, conf.EnableKeepAlive = io.Discard, false
	conf.MaxStreamWindowSize = 2 << 20
	client, err := yamux.Client(near, conf)
	if err != nil {
		b.Fatal(err)
	}
	server, err := yamux.Server(far, conf)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = client.Close() // never fails
		_ = server.Close()
	})
	x, err := client.OpenStream()
	if err != nil {
		b.Fatal(err)
	}
	y, err := server.AcceptStream()
	if err != nil {
		b.Fatal(err)
	}
	return x, y
}

func processCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func variants(b *testing.B, f func(b *testing.B, near, far net.Conn)) {
	for _, mux := range []bool{false, true} {
		for _, linked := range []bool{false, true} {
			b.Run(fmt.Sprintf("yamux=%t/link=%t", mux, linked), func(b *testing.B) {
				near, far := overTLS(b, linked)
				if mux {
					near, far = underYamux(b, near, far)
				}
				f(b, near, far)
			})
		}
	}
}

func BenchmarkThroughput(b *testing.B) {
	variants(b, func(b *testing.B, near, far net.Conn) {
		const size = 64 << 10
		var wg sync.WaitGroup
		finished := make(chan struct{})
		wg.Go(func() {
			buf := make([]byte, 128<<10)
			for want := int64(-1); want != 0; {
				n, err := far.Read(buf)
				if err != nil || (n > 0 && buf[n-1] == 1) {
					break
				}
			}
			close(finished)
		})
		buf := make([]byte, size)
		b.SetBytes(size)
		start := processCPU()
		n := 0
		for b.Loop() {
			if _, err := near.Write(buf); err != nil {
				b.Fatal(err)
			}
			n++
		}
		_, _ = near.Write([]byte{1}) // a write that fails ends the reader too
		<-finished
		b.ReportMetric((processCPU()-start).Seconds()*1e9/float64(n*size), "CPUs/GB")
		wg.Wait()
	})
}

func BenchmarkRoundTrip(b *testing.B) {
	variants(b, func(b *testing.B, near, far net.Conn) {
		var wg sync.WaitGroup
		wg.Go(func() {
			buf := make([]byte, 64)
			for {
				n, err := far.Read(buf)
				if err != nil || buf[0] == 1 {
					return
				}
				if _, err = far.Write(buf[:n]); err != nil {
					return
				}
			}
		})
		buf := make([]byte, 64)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := near.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(near, buf); err != nil {
				b.Fatal(err)
			}
		}
		buf[0] = 1
		_, _ = near.Write(buf) // a write that fails ends the echo too
		wg.Wait()
	})
}
