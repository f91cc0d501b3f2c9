// Rapid reset (CVE-2023-44487): streams that are opened and taken back at once.

package overh2

import (
	"bytes"
	"io"
	"runtime"
	"sync"
	"testing"

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
