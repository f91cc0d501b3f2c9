// Tests of a server that has just started.

package peers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

// TestDialAtStart: a server that does not have the others' sessions yet does not answer that
// a node is not connected.
func TestDialAtStart(t *testing.T) {
	f := newFleet(t, "a", "b")
	f.servers["b"].join("n", echo)
	all := []Peer{{ID: "c"}}
	for _, s := range f.servers {
		all = append(all, Peer{ID: s.id, Addr: s.addr})
	}
	c := f.start("c")
	type answer struct {
		got string
		err error
	}
	early := make(chan answer, 1)
	go func() {
		got, err := c.ask("n:1")
		early <- answer{got, err}
	}()
	c.peers.Set(all)
	if got, err := c.ask("n:1"); err != nil || got != "n:1\nahoy" {
		t.Errorf("after the others are known: %q, %v", got, err)
	}
	if a := <-early; a.err != nil || a.got != "n:1\nahoy" {
		t.Errorf("before: %q, %v", a.got, a.err)
	}
	if _, err := c.open("m:1"); !errors.Is(err, tunnel.NoNode) {
		t.Errorf("a node that nobody has: %v", err)
	}
}

// TestDialAtStartIsBounded: a dial waits for silent servers until the startup time has passed
// since the first answer, regardless of how long the server took to start. It does not wait if
// there are no other servers.
func TestDialAtStartIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nobody := func(context.Context, Peer, bool) (tunnel.Session, error) { return nil, errors.New("out of reach") }
		p, err := New(Config{ID: "a", Hub: func() *server.Hub { return nil }, Dial: nobody})
		if err != nil {
			t.Fatal(err)
		}
		wait := func() time.Duration {
			began := time.Now()
			if _, ok, err := p.Dial(t.Context(), "n", tunnel.Dial{}); ok || err != nil {
				t.Errorf("%v, %v", ok, err)
			}
			return time.Since(began)
		}
		time.Sleep(3 * startup)
		if d := wait(); d != startup {
			t.Errorf("the first dial waited %v", d)
		}
		if d := wait(); d != 0 {
			t.Errorf("a later dial waited %v", d)
		}
		if p, err = New(p.cfg); err != nil {
			t.Fatal(err)
		}
		p.Set([]Peer{{ID: "a"}, {ID: "b"}})
		early, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, ok, _ := p.Dial(early, "n", tunnel.Dial{}); ok || time.Since(began) != time.Second {
			t.Errorf("a caller who waits for a second waited %v", time.Since(began))
		}
		p.attempted("b")
		if d := wait(); d != 0 {
			t.Errorf("with nobody left to hear a dial waited %v", d)
		}
	})
}
