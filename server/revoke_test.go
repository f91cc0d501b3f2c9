package server

// Tests of nodes that lose their names: their sessions end, and no new one is accepted.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// losers are nodes that Admit refuses.
type losers struct{ are atomic.Pointer[string] }

func (l *losers) admit(_ context.Context, node string, _ tunnel.Peer) error {
	if name := l.are.Load(); name != nil && *name == node {
		return Refuse(tunnel.Revoked, 30*time.Second, "node was revoked")
	}
	return nil
}

func (l *losers) lose(h *Hub, node string) int {
	l.are.Store(&node)
	return h.End(node, func(tunnel.Peer) bool { return true }, fmt.Errorf("%w: it was stolen", tunnel.Revoked))
}

// A session, parked or not, ends with the reason, and its streams end with it. The node is
// refused with a time to come back.
func TestEndOfSession(t *testing.T) {
	for _, parked := range []bool{false, true} {
		t.Run(fmt.Sprintf("parked %t", parked), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &losers{}
				b := newTestHub(t, Config{Admit: l.admit})
				x, y := b.mustConnect(one("a")), b.mustConnect(one("b"))
				c, err := b.hub.DialContext(t.Context(), "tcp", "a:1")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if parked {
					b.mu.Lock()
					at := b.testSession[0]
					b.mu.Unlock()
					at.park()
				}
				if n := l.lose(b.hub, "a"); n != 1 {
					t.Errorf("%d sessions were ended", n)
				}
				<-x.gone
				var bye *tunnel.Goodbye
				if !parked && (!errors.As(x.err, &bye) || bye.Code != tunnel.Revoked || !strings.Contains(bye.Text, "stolen")) {
					t.Errorf("the agent was told %v", x.err)
				}
				if _, err := io.ReadAll(c); err == nil {
					t.Error("its streams ended as if all had been read")
				}
				synctest.Wait()
				if _, ok := b.hub.Session("a"); ok {
					t.Error("the node is still connected")
				}
				if _, ok := b.hub.Session("b"); !ok || y.session.Context().Err() != nil {
					t.Error("another node's session ended")
				}
				_, err = b.connect(one("a"), nil)
				if after, ok := tunnel.RetryAfter(err); !errors.Is(err, tunnel.Revoked) || !ok || after != 30*time.Second {
					t.Errorf("it came back: %v", err)
				}
			})
		})
	}
}

// Sessions of the key that holds the name now go on.
func TestEndSpares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		x := b.mustConnect(one("a"))
		if n := b.hub.End("a", func(tunnel.Peer) bool { return false }, tunnel.Revoked); n != 0 || x.session.Context().Err() != nil {
			t.Errorf("%d were ended: %v", n, x.session.Context().Err())
		}
		if n := b.hub.End("nobody", func(tunnel.Peer) bool { return true }, tunnel.Revoked); n != 0 {
			t.Errorf("%d sessions of nobody", n)
		}
	})
}

// A node that loses its name after it was admitted, and before End could find it, is
// closed.
func TestLostWhileBeingGreeted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		b := newTestHub(t, Config{Admit: func(context.Context, string, tunnel.Peer) error {
			if asked++; asked > 1 {
				return Refuse(tunnel.Revoked, time.Second, "node was revoked")
			}
			return nil
		}})
		if _, err := b.connect(one("a"), nil); !errors.Is(err, tunnel.Revoked) {
			t.Errorf("it was let in: %v", err)
		}
		if _, ok := b.hub.Session("a"); ok {
			t.Error("it is connected")
		}
	})
}

// A resumption calls Admit too, and so it is refused after a revocation.
func TestRevokedWhileParked(t *testing.T) {
	l := &losers{}
	h, err := New(Config{
		Listeners: []tunnel.Listener{new(tunneltest.Exchange).Listen("x")}, Admit: l.admit,
		Identify: func(tunnel.Peer) (string, error) { return "a", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.MayResume(tunnel.Peer{}); err != nil {
		t.Error(err)
	}
	l.lose(h, "a")
	if err := h.MayResume(tunnel.Peer{}); !errors.Is(err, tunnel.Revoked) {
		t.Errorf("resumed: %v", err)
	}
}

// BenchmarkEnd ends 10,000 sessions, the hub's and the agents' ends together, in at most
// a second of CPU.
func BenchmarkEnd(b *testing.B) {
	const nodes = 10_000
	for b.Loop() {
		b.StopTimer()
		x := new(tunneltest.Exchange)
		h, err := New(Config{
			Listeners: []tunnel.Listener{x.Listen("hub")}, Log: slog.New(slog.DiscardHandler),
			Identify: func(p tunnel.Peer) (string, error) { return p.TLS.ServerName, nil },
		})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		ran := make(chan error, 1)
		go func() { ran <- h.Run(ctx) }()
		names := manyAgents(b, x, nodes)
		if err := h.Wait(ctx, nodes); err != nil {
			b.Fatal(err)
		}
		before := cpuTime(b)
		b.StartTimer()
		for _, name := range names {
			if n := h.End(name, func(tunnel.Peer) bool { return true }, tunnel.Revoked); n != 1 {
				b.Fatalf("%d sessions of %s", n, name)
			}
		}
		for changed := h.Changed(); len(h.registry.all()) > 0; changed = h.Changed() {
			<-changed
		}
		b.StopTimer()
		took := cpuTime(b) - before
		b.ReportMetric(took.Seconds(), "cpu-s/op")
		if took > time.Second {
			b.Errorf("%v of CPU", took)
		}
		cancel()
		if err := <-ran; err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
