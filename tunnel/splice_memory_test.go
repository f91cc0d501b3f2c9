package tunnel_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// TestIdleSpliceHoldsLittle moves bulk through spliced pairs, then a keystroke, and
// looks at what they hold while they wait for the next one.
func TestIdleSpliceHoldsLittle(t *testing.T) {
	const (
		pairs = 100
		bound = 24 << 10 // each: two goroutines, two pipes, two little buffers
	)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	bulk := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	back := make([]byte, len(bulk))
	send := func(near, far net.Conn, p []byte) {
		t.Helper()
		var writing sync.WaitGroup
		writing.Go(func() {
			if _, err := near.Write(p); err != nil {
				t.Error(err)
			}
		})
		if _, err := io.ReadFull(far, back[:len(p)]); err != nil {
			t.Error(err)
		}
		writing.Wait()
		if !bytes.Equal(back[:len(p)], p) {
			t.Error("something else came out")
		}
	}
	before := heap()
	for range pairs {
		near, a := net.Pipe()
		b, far := net.Pipe()
		wg.Go(func() {
			if _, err := tunnel.Splice(ctx, a, b); err == nil {
				t.Error("ended by itself")
			}
		})
		for _, p := range [][]byte{bulk, bulk[:1], bulk[:4095], bulk[:4096], bulk[:4097], bulk[:70_000], bulk[:1]} {
			send(near, far, p)
			send(far, near, p)
		}
	}
	if each := (heap() - before) / pairs; each > bound {
		t.Errorf("an idle pair holds %d bytes, more than %d", each, bound)
	}
}

// TestIdleTLSSpliceHoldsLittle does the same with TLS connections, of which nobody
// knows whether something has come without reading it.
func TestIdleTLSSpliceHoldsLittle(t *testing.T) {
	const (
		little = 4 << 10
		record = 16 << 10
	)
	near, a := tunneltest.TCPPair(t)
	b, far := tunneltest.TCPPair(t)
	conf := tunneltest.TLS(t)
	client, server := tls.Client(near, conf), tls.Server(a, conf)
	conf.ServerName = "server"
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() {
		if _, err := tunnel.Splice(ctx, server, b); err == nil {
			t.Error("ended by itself")
		}
	})
	for _, tc := range []struct{ size, bound int }{
		{1, little}, {1000, little}, {10_000, little}, {1 << 20, record}, {1, little}, {70_000, record}, {10_000, little},
	} {
		tunneltest.Says(t, client, far, tc.size)
		tunneltest.Says(t, far, client, tc.size)
		tunneltest.HoldsAtMost(t, int64(tc.bound))
	}
}

// heap is what is in use once caches have been emptied.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
