// Rapid reset (CVE-2023-44487): streams that are opened and taken back at once.

package overh2

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A peer that opens streams and takes them back as fast as it can has no more of them
// at work than it may have at a time, and others are served.
func TestRapidReset(t *testing.T) {
	const most, attempts = 16, 50_000
	addr, sessions := tunneltest.ListenTCP(t, Transport(), tunnel.Options{MaxStreams: most})
	c := dialBare(t, addr)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
	before, peak := runtime.NumGoroutine(), 0
	var out, block bytes.Buffer // which take all
	f, enc := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	out.WriteString(http2.ClientPreface)
	_ = f.WriteSettings()
	for i := range attempts {
		id := uint32(2*i + 1)
		block.Reset()
		for _, x := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":authority", "hawser"}, {":path", streamPath}} {
			_ = enc.WriteField(hpack.HeaderField{Name: x[0], Value: x[1]})
		}
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
		_ = f.WriteRSTStream(id, http2.ErrCodeCancel)
		if _, err := c.Write(out.Bytes()); err != nil {
			break // it has been cut off
		}
		out.Reset()
		peak = max(peak, runtime.NumGoroutine()-before)
	}
	if bound := 4*(most+backlog) + 10; peak > bound {
		t.Errorf("%d goroutines, more than %d", peak, bound)
	}
	s, b := dialedBare(t, addr, sessions)
	exchanges(t, s, b)
	_ = c.Close()
	wg.Wait()
}

// A stream that its accepter gives up before HTTP/2 has answered is reset at the opener at
// once, though that still has something to say.
func TestGivenUpBeforeTheAnswer(t *testing.T) {
	a, b := tunneltest.OverTCP(Transport())(t, tunnel.Options{})
	defer func() { _, _ = a.Close(), b.Close() }()
	for range 500 {
		near, err := a.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = near.Write([]byte("x")) // it may be over
		far, err := b.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = tunnel.Abort(far)
		_ = near.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("read: %v", err)
		}
		_ = near.Close()
	}
}
