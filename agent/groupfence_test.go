// When a node of several sessions is fenced, and until when.

package agent

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// fences are the calls of Config.Fenced.
type fences struct {
	mu  sync.Mutex
	all []bool // guarded by mu
}

func (f *fences) tell(up bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, up)
}

func (f *fences) want(t *testing.T, g *startedGroup, when string, want ...bool) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if up := len(want)%2 == 1; !slices.Equal(f.all, want) || g.State().Fenced != up {
		t.Errorf("%s: told %v and in state %t, want %v and %t", when, f.all, g.State().Fenced, want, up)
	}
}

// replaces has all sessions end for another agent, and their servers refuse this one while on.
func (h *servers) replaces(on *atomic.Bool) {
	on.Store(true)
	for {
		select {
		case m := <-h.sessions:
			_ = m.control.HangUp(&tunnel.Goodbye{Code: tunnel.Replaced, Text: "another agent with this node's identity"})
		default:
			return
		}
	}
}

// TestFencedBesideSameServer: a node whose two addresses lead to one server is no longer fenced
// once that server has taken it back, although one of its agents gets no session.
func TestFencedBesideSameServer(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.identity = sameServer
		var other atomic.Bool
		h.decision = func(int, tunnel.Hello) error {
			if other.Load() {
				return tunnel.Replaced
			}
			return nil
		}
		var told fences
		h.open("a:1")
		h.open("b:1")
		g := h.startGroup(Config{Servers: []string{"a:1", "b:1"}, Fenced: told.tell}, 2)
		pass(10 * time.Second)
		told.want(t, g, "connected")
		h.replaces(&other)
		pass(10 * time.Minute)
		told.want(t, g, "replaced", true)
		other.Store(false)
		pass(30 * time.Minute)
		told.want(t, g, "taken back", true, false)
	})
}

// TestFencedByLostServer: what a server said that is out of reach since then does not outweigh
// that another one has taken the node back. While it answers it does.
func TestFencedByLostServer(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.identity = func(name string) string { return name }
		refuses := map[string]*atomic.Bool{"a:1": new(atomic.Bool), "b:1": new(atomic.Bool)}
		h.opinion = func(name string) error {
			if refuses[name].Load() {
				return tunnel.Replaced
			}
			return nil
		}
		var told fences
		h.open("a:1")
		shut := h.open("b:1")
		g := h.startGroup(Config{Servers: []string{"a:1", "b:1"}, Fenced: told.tell}, 2)
		pass(10 * time.Second)
		refuses["b:1"].Store(true)
		h.replaces(refuses["a:1"])
		pass(10 * time.Minute)
		told.want(t, g, "replaced at both", true)
		refuses["a:1"].Store(false)
		pass(30 * time.Minute)
		told.want(t, g, "taken back by one", true)
		shut()
		pass(30 * time.Minute)
		told.want(t, g, "the other is lost", true, false)
		h.open("b:1")
		pass(30 * time.Minute)
		told.want(t, g, "the other is back, and refuses", true, false, true)
	})
}
