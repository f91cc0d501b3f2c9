// Rapid reset (CVE-2023-44487): streams that are opened and taken back at once.

package overh2

import (
	"context"
	"io"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/net/http2"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A peer that opens streams and takes them back as fast as it can gets no more of them
// than there may be, whether they are accepted or not, and the session goes on.
func TestRapidReset(t *testing.T) {
	const most, attempts = 16, 50_000
	for name, client := range map[string]bool{"by an agent": true, "by a server": false} {
		t.Run(name, func(t *testing.T) {
			peer, c := memnet.Pipe(memnet.Addr("peer"), memnet.Addr("us"))
			s := newSession(carrier.NewPipe(c, tunnel.Peer{}), client, tunnel.Options{MaxStreams: most})
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = io.Copy(io.Discard, peer) })
			open := func(say *script, id uint32) {
				if client {
					say.headers(id, false, ":status", "200")
				} else {
					say.connect(id, authorityStream)
				}
			}
			before, honest := runtime.NumGoroutine(), make(chan string, 1)
			var peak int
			wg.Go(func() {
				serve(s, func(st tunnel.Stream) {
					b, err := io.ReadAll(st)
					if err == nil {
						honest <- string(b)
					}
				}, func() { peak = max(peak, runtime.NumGoroutine()-before) })
			})
			say := newScript(!client)
			id := uint32(1)
			for range attempts {
				open(say, id)
				_ = say.WriteRSTStream(id, http2.ErrCodeCancel)
				id += 2
				if _, err := peer.Write(say.buf.Bytes()); err != nil {
					t.Fatalf("cut off at stream %d: %v", id, context.Cause(s.Context()))
				}
				say.buf.Reset()
			}
			open(say, id)
			_ = say.WriteData(id, true, []byte("honest"))
			if _, err := peer.Write(say.buf.Bytes()); err != nil {
				t.Fatal(err)
			}
			select {
			case got := <-honest:
				if got != "honest" {
					t.Errorf("read %q", got)
				}
			case <-s.Context().Done():
				t.Errorf("the session is over: %v", context.Cause(s.Context()))
			}
			_ = s.Close()
			_ = peer.Close()
			wg.Wait()
			if peak > 2*most+10 {
				t.Errorf("%d goroutines", peak)
			}
		})
	}
}

// serve accepts streams until the session is over, and calls look for each.
func serve(s tunnel.Session, f func(tunnel.Stream), look func()) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		st, err := s.Accept(context.Background())
		if err != nil {
			return
		}
		look()
		wg.Go(func() {
			f(st)
			_ = st.Close()
		})
	}
}
