package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A startedGroup runs.
type startedGroup struct {
	*Group
	log  *log
	stop func()
	done chan struct{}
}

// startGroup runs agents of one node until stop is called or the test ends.
func (h *servers) startGroup(c Config, n int) *startedGroup {
	h.t.Helper()
	l := new(log)
	c.NodeName, c.Dial, c.Target = "node-1", h.net.Dial, h.net.Dial
	if c.Transport.Dial == nil {
		c.Transport = h.exchange.Transport()
	}
	c.Log = slog.New(slog.NewTextHandler(l, nil))
	g, err := NewGroup(c, n)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, a := range g.agents {
		a.routing = h.routing()
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	s := &startedGroup{Group: g, log: l, stop: cancel, done: make(chan struct{})}
	h.group.Go(func() {
		defer close(s.done)
		if err := g.Run(ctx); err != nil {
			h.t.Error(err)
		}
	})
	return s
}

// TestGroup: two sessions, each with a server of its own, are one agent for both. When a
// server stops, a third one replaces it, and dials go by the other meanwhile.
func TestGroup(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		shut := map[string]func(){}
		for _, name := range []string{"a:1", "b:1", "c:1"} {
			shut[name] = h.open(name)
		}
		h.echo("apiserver:443")
		var moves []bool
		g := h.startGroup(Config{Servers: []string{"a:1", "b:1", "c:1"}, Moved: func(stuck bool) { moves = append(moves, stuck) }}, 2)
		pass(time.Second)
		first, second := next(t, h.sessions), next(t, h.sessions)
		if first.server == second.server || first.server == "c:1" || second.server == "c:1" {
			t.Errorf("sessions with %s and %s", first.server, second.server)
		}
		if first.hello.Instance != second.hello.Instance || first.hello.Sequence == second.hello.Sequence {
			t.Errorf("%+v and %+v: want one instance, and a sequence of greetings", first.hello, second.hello)
		}
		dial := func() {
			t.Helper()
			c, err := g.DialContext(t.Context(), "tcp", "apiserver:443")
			if err != nil {
				t.Fatal(err)
			}
			exchangeText(t, c)
		}
		dial()
		used := g.State().Server
		shut[used]()
		began := time.Now()
		dial()
		if d := time.Since(began); d > 0 {
			t.Errorf("the other server was used %v later", d)
		}
		if s := g.State().Server; s == used {
			t.Errorf("dials go by %s, which is gone", s)
		}
		pass(2 * time.Second)
		if third := next(t, h.sessions); third.server != "c:1" {
			t.Errorf("the third session is with %s, want c:1", third.server)
		}
		// If the agent had the third session before the group looked, dials stay with it.
		if len(moves) == 0 && g.State().Server != "c:1" {
			t.Error("nobody was told that dials go another way")
		}
		dial()
	})
}

// TestGroupLeavesDraining: when the server of new dials is about to stop, they go by the
// other at once, and dials under way through the first continue.
func TestGroupLeavesDraining(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		for _, name := range []string{"a:1", "b:1", "c:1"} {
			h.open(name)
		}
		var moves []bool
		g := h.startGroup(Config{Servers: []string{"a:1", "b:1", "c:1"}, Moved: func(stuck bool) { moves = append(moves, stuck) }}, 2)
		pass(time.Second)
		used := g.State().Server
		for range 2 {
			if m := next(t, h.sessions); m.server == used {
				if err := m.control.Drain(t.Context(), tunnel.Draining, "restart"); err != nil {
					t.Fatal(err)
				}
			}
		}
		pass(time.Second)
		if s := g.State(); s.Server == used || !s.Connected {
			t.Errorf("dials go by %s, connected %v", s.Server, s.Connected)
		}
		if len(moves) == 0 || slices.Contains(moves, true) {
			t.Errorf("told of moves %v: want some, and none stuck", moves)
		}
	})
}

// TestGroupOfFew: there are no more sessions than servers, and a server that has come back
// is used again although another agent of the node has the other one.
func TestGroupOfFew(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		shut := h.open("a:1")
		h.open("b:1")
		g := h.startGroup(Config{Servers: []string{"a:1", "b:1", "a:1"}}, 5)
		pass(time.Second)
		if len(g.agents) != 2 {
			t.Fatalf("%d agents, want 2", len(g.agents))
		}
		for range 2 {
			next(t, h.sessions)
		}
		shut()
		pass(10 * time.Second)
		select {
		case s := <-h.sessions:
			t.Errorf("a session with %s, which has one", s.server)
		default:
		}
		h.open("a:1")
		pass(DefaultMaxBackoff + time.Second)
		if s := next(t, h.sessions); s.server != "a:1" {
			t.Errorf("a session with %s, want a:1", s.server)
		}
	})
}

// TestGroupUntrusted: a server whose certificate cannot be trusted is told of though another
// one is connected, until it can be.
func TestGroupUntrusted(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.open("a:1")
		h.open("b:1")
		var trusted atomic.Bool
		way := h.exchange.Transport()
		dial := way.Dial
		way.Dial = func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
			if addr == "b:1" && !trusted.Load() {
				return nil, x509.UnknownAuthorityError{}
			}
			return dial(ctx, addr, o)
		}
		g := h.startGroup(Config{Servers: []string{"a:1", "b:1"}, Transport: way}, 2)
		pass(time.Second)
		if s := g.State(); !s.Connected || s.Err != nil || !g.Untrusted() {
			t.Errorf("%+v, a server is untrusted: %v", s, g.Untrusted())
		}
		trusted.Store(true)
		if pass(DefaultMaxBackoff + time.Second); g.Untrusted() {
			t.Error("a server is untrusted though both are connected")
		}
	})
}

// TestGroupFenced: the node is fenced while one of its agents is.
func TestGroupFenced(t *testing.T) {
	g := &Group{shared: newShared()}
	var told []string
	tell := func(up bool) { told = append(told, fmt.Sprint(up)) }
	for _, up := range []bool{true, true, false, false} {
		g.shared.fence(up)
		g.fence(tell)
	}
	if got := fmt.Sprint(told); got != "[true false]" {
		t.Errorf("told %s", got)
	}
}

// TestGroupSuspects: when requests through the server of new dials fail although its session
// works, dials go by another server and stay there. When both are suspected they take turns.
func TestGroupSuspects(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.open("a:1")
		h.open("b:1")
		h.echo("apiserver:443")
		mute := "" // the server whose API accepts connections and never answers
		h.api = func(name string) dialFunc {
			if name != mute {
				return nil
			}
			return func(context.Context, string, string) (net.Conn, error) {
				near, far := memnet.Pipe(tunnel.Addr("near"), tunnel.Addr("far"))
				h.group.Go(func() { _, _ = io.Copy(io.Discard, far) })
				return near, nil
			}
		}
		g := h.startGroup(Config{Servers: []string{"a:1", "b:1"}}, 2)
		pass(time.Second)
		mute = g.State().Server
		request := func() error {
			c, err := g.DialContext(t.Context(), "tcp", "apiserver:443")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err = io.WriteString(c, "ahoy"); err == nil {
				_, err = io.ReadFull(c, make([]byte, 4))
			}
			return err
		}
		for range 2 {
			if err := request(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("a request to an API that does not answer: %v", err)
			}
		}
		for range 2 { // requests that fail together count as one
			g.Suspect()
			if err := request(); err != nil || g.State().Server == mute {
				t.Errorf("through %s: %v", g.State().Server, err)
			}
		}
		pass(suspectFor + time.Second)
		if g.State().Server == mute {
			t.Error("dials came back to the server by themselves")
		}
		other := g.State().Server
		for _, want := range []string{mute, other, mute} {
			g.Suspect()
			if used := g.State().Server; used != want {
				t.Errorf("dials go by %s, want %s", used, want)
			}
			pass(suspectEvery)
		}
	})
}

// TestGroupDialsPast: a dial that a server does not answer goes to another one while there is
// time.
func TestGroupDialsPast(t *testing.T) {
	for name, answer := range map[string]dialFunc{
		"no answer": func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
		"timeout": func(context.Context, string, string) (net.Conn, error) { return nil, tunnel.Timeout },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				h.open("a:1")
				h.open("b:1")
				h.echo("apiserver:443")
				slow := ""
				h.api = func(name string) dialFunc {
					if name == slow {
						return answer
					}
					return nil
				}
				g := h.startGroup(Config{Servers: []string{"a:1", "b:1"}}, 2)
				pass(time.Second)
				slow = g.State().Server
				began := time.Now()
				c, err := g.DialContext(t.Context(), "tcp", "apiserver:443")
				if err != nil {
					t.Fatal(err)
				}
				exchangeText(t, c)
				if took := time.Since(began); took > otherAfter {
					t.Errorf("connected after %v", took)
				}
			})
		})
	}
}

// TestGroupBeginsAnywhere: nodes with equal lists of servers do not all use the first one.
func TestGroupBeginsAnywhere(t *testing.T) {
	used := make(map[int]int)
	for range 100 {
		g, err := NewGroup(Config{Servers: []string{"a:1", "b:1", "c:1"}, NodeName: "node-1", Transport: tunnel.Transport{
			Dial: func(context.Context, string, tunnel.Options) (tunnel.Session, error) { return nil, tunnel.Refused },
		}}, 2)
		if err != nil {
			t.Fatal(err)
		}
		used[g.preferred.first]++
	}
	if len(used) != 2 || used[0]+used[1] != 100 {
		t.Errorf("by index of the preferred server: %v, want both of the first two", used)
	}
}
