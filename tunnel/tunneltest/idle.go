// What splices hold that have nothing to do.

package tunneltest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// testIdleSplices goes from a TCP connection through two streams to another, with
// three splices on the way. When all that was said has come out, and nothing more
// comes, none of them holds a buffer.
func testIdleSplices(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	near, middle := streams(t, a, b)
	further, far := streams(t, a, b)
	client, in := TCPPair(t)
	target, out := TCPPair(t)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	for _, ends := range [][2]net.Conn{{in, near}, {middle, further}, {far, out}} {
		wg.Go(func() { _, _ = tunnel.Splice(ctx, ends[0], ends[1]) }) // whoever reads notices
	}
	for _, size := range []int{10_000, 1, 4 << 10, 1 << 20, 64 << 10, 10_000} {
		Says(t, client, target, size)
		Says(t, target, client, size)
		HoldsAtMost(t, 0)
	}
}

// testBufferReader reads by ReadBuffer what the other end says, if a stream knows that:
// memory is taken only for what is there, and what comes together is read together.
func testBufferReader(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	near, far := streams(t, a, b)
	defer near.Close()
	r, ok := far.(tunnel.BufferReader)
	if !ok {
		return
	}
	_ = far.SetReadDeadline(time.Now().Add(patience)) // fails only if a read does
	for _, size := range []int{1, 4 << 10, 300_000, 5} {
		said := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		var writing sync.WaitGroup
		writing.Go(func() {
			if _, err := near.Write(said); err != nil {
				t.Error(err)
			}
		})
		var heard []byte
		for len(heard) < size {
			var buf tunnel.Buffer
			n, err := r.ReadBuffer(&buf)
			if err != nil {
				t.Fatal(err)
			}
			heard = append(heard, buf.Take(n)[:n]...)
			buf.Free()
		}
		writing.Wait()
		if !bytes.Equal(said, heard) {
			t.Fatalf("of %d bytes not all came out as they were", size)
		}
	}
	if err := near.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var buf tunnel.Buffer
	if n, err := r.ReadBuffer(&buf); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %d bytes, %v", n, err)
	}
	buf.Free()
	HoldsAtMost(t, 0)
}

// Says has size bytes go from one end to the other.
func Says(t *testing.T, from, to net.Conn, size int) {
	t.Helper()
	said, heard := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size], make([]byte, size)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if _, err := from.Write(said); err != nil {
			t.Error(err)
		}
	})
	_ = to.SetReadDeadline(time.Now().Add(patience)) // fails only if Read does
	if _, err := io.ReadFull(to, heard); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(said, heard) {
		t.Fatalf("of %d bytes not all came out as they were", size)
	}
}

// HoldsAtMost fails the test if the buffers of all splices do not come to hold bound
// bytes or less. A splice gives its buffer back after whoever is behind it has got
// what was in there.
func HoldsAtMost(t *testing.T, bound int64) {
	t.Helper()
	ctx := within(t)
	for tunnel.Buffered() > bound {
		if ctx.Err() != nil {
			t.Fatalf("idle splices hold %d bytes, more than %d", tunnel.Buffered(), bound)
		}
		runtime.Gosched()
	}
}

// TCPPair is both ends of a connection on loopback. The test closes them.
func TCPPair(t testing.TB) (dialed, accepted net.Conn) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if dialed, err = new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = dialed.Close(), accepted.Close() })
	return dialed, accepted
}
