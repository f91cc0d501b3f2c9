// What splices cost: a connection through a tunnel, with a Splice at either end.

package tunnel_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// BenchmarkSplice goes from a TCP client through two splices and a session between
// them to a TCP target.
func BenchmarkSplice(b *testing.B) {
	b.Run("round-trip", func(b *testing.B) {
		client, target := tunneled(b)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(target, target) }) // to the end
		buf := make([]byte, 1)
		for b.Loop() {
			if _, err := client.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(client, buf); err != nil {
				b.Fatal(err)
			}
		}
		_ = client.Close()
		wg.Wait()
	})
	for name, size := range map[string]int{"10KB": 10_000, "64KiB": 64 << 10} {
		b.Run("throughput/"+name, func(b *testing.B) {
			client, target := tunneled(b)
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = io.Copy(io.Discard, target) }) // to the end
			buf := make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, err := client.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			_ = tunnel.CloseWrite(client)
			wg.Wait()
			_ = client.Close()
		})
	}
}

// tunneled is both ends of a connection through two splices.
func tunneled(b *testing.B) (client, target net.Conn) {
	b.Helper()
	near, far := tunneltest.OverTCP(overyamux.Transport())(b, tunnel.Options{})
	client, in := tunneltest.TCPPair(b)
	out, target := tunneltest.TCPPair(b)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	b.Cleanup(func() {
		cancel()
		_, _ = client.Close(), target.Close()
		_, _ = near.Close(), far.Close()
		wg.Wait()
	})
	st, err := near.Open(ctx)
	if err != nil {
		b.Fatal(err)
	}
	wg.Go(func() { _, _ = tunnel.Splice(ctx, in, st) }) // whoever benchmarks notices
	st2, err := far.Accept(ctx)
	if err != nil {
		b.Fatal(err)
	}
	wg.Go(func() { _, _ = tunnel.Splice(ctx, st2, out) }) // likewise
	return client, target
}
