package peers

// Servers whose Leases have expired.

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// TestStreamOutlivesRemoval: a server falls silent for so long that it is removed, and added again
// once it is heard. Streams that pass it go on, and so do dials.
func TestStreamOutlivesRemoval(t *testing.T) {
	for name, fault := range map[string]func(*faulty){"no packets": (*faulty).lose, "stopped": (*faulty).stop} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n faulty
				f, c := n.through(t)
				a, b := f.servers["a"], f.servers["b"]
				both := []Peer{{ID: "a", Addr: a.addr}, {ID: "b", Addr: b.addr}}
				for range 3 {
					fault(&n)
					time.Sleep(15 * time.Second) // the bubble's clock
					a.peers.Set(both[:1])
					time.Sleep(20 * time.Second) // the bubble's clock
					if all := a.peers.owners("n"); len(all) != 0 {
						t.Errorf("dials would still go there: %v", all)
					}
					n.find()
					echoes(t, c, "after", 10*time.Second)
					a.peers.Set(both)
					a.knows("n", 1)
					if got, err := a.ask("n:1"); err != nil || got != "n:1\nahoy" {
						t.Errorf("a new dial: %q, %v", got, err)
					}
					time.Sleep(time.Minute) // the bubble's clock
				}
			})
		})
	}
}

// TestRemovedServerEnds: the streams through a server that was removed because it was killed end
// when the detach window is over, or as soon as another process answers at its address. That one
// is soon heard.
func TestRemovedServerEnds(t *testing.T) {
	for name, again := range map[string]bool{"started again": true, "gone": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n faulty
				f, c := n.through(t)
				a, b := f.servers["a"], f.servers["b"]
				both := []Peer{{ID: "a", Addr: a.addr}, {ID: "b", Addr: b.addr}}
				b.kill()
				began := time.Now()
				time.Sleep(15 * time.Second) // the bubble's clock
				a.peers.Set(both[:1])
				bound := tunnel.DefaultDetachWindow
				if again {
					time.Sleep(3 * time.Second) // the bubble's clock
					f.start("b").join("n", echo)
					began = time.Now()
					a.peers.Set(both)
					bound = 10 * time.Second
				}
				if _, err := io.Copy(io.Discard, c); err == nil || !strings.Contains(err.Error(), "server b") {
					t.Errorf("the stream ended with %v, want what names the server", err)
				}
				if d := time.Since(began); d > bound+time.Second {
					t.Errorf("the stream ended after %v", d)
				}
				if again {
					a.knows("n", 1)
					if d := time.Since(began); d > bound {
						t.Errorf("it was heard again after %v", d)
					}
					return
				}
				// Nothing of it is left that would hold up a server of its ID.
				f.start("b").join("n", echo)
				a.peers.Set(both)
				began = time.Now()
				a.knows("n", 1)
				if d := time.Since(began); d > 10*time.Second {
					t.Errorf("a new server was heard after %v", d)
				}
			})
		})
	}
}
