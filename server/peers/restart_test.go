// Tests of nodes whose agents are restarted.

package peers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

// TestRestartedElsewhere: a node's agent leaves one server and its next process connects to
// another. Dials at each server wait until it knows that, and do not make another server
// wait.
func TestRestartedElsewhere(t *testing.T) {
	f := newFleet(t, "a", "b", "c")
	b, c := f.servers["b"], f.servers["c"]
	control, gone, err := b.greetAs("n", 1, echo)
	if err != nil {
		t.Fatal(err)
	}
	f.servers["a"].knows("n", 1)
	c.knows("n", 1)
	if err := control.Drain(t.Context(), tunnel.Draining, "agent is stopping"); err != nil {
		t.Fatal(err)
	}
	<-gone
	f.servers["a"].knows("n", 0)
	c.knows("n", 0)
	type result struct{ id, got string }
	results := make(chan result, len(f.servers))
	for id, s := range f.servers {
		go func() {
			got, err := s.ask("n:1")
			if err != nil {
				got = err.Error()
			}
			results <- result{id, got}
		}()
	}
	for id, s := range f.servers {
		limit := time.After(time.Minute)
		for s.metric("hawser_hub_dials_waiting") == 0 {
			select {
			case r := <-results:
				t.Fatalf("through %s, before there is a session: %s", r.id, r.got)
			case <-limit:
				t.Fatalf("no dial waits at %s", id)
			case <-time.After(time.Millisecond):
			}
		}
	}
	began := time.Now()
	if _, err := c.joinAs("n", 2, echo); err != nil {
		t.Fatal(err)
	}
	for range f.servers {
		if r := <-results; r.got != "n:1\nahoy" {
			t.Errorf("through %s: %s", r.id, r.got)
		}
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("they waited for %v after it was back", d)
	}
	if n := b.metric("hawser_peer_requests_total"); n != 0 {
		t.Errorf("b was asked %v times, which has no session", n)
	}
}

// TestForgottenWhileAwaited: a node that was removed at the server that it has left is not
// awaited at another.
func TestForgottenWhileAwaited(t *testing.T) {
	f := newFleet(t, "a", "b")
	a, b := f.servers["a"], f.servers["b"]
	control, gone, err := b.greetAs("n", 1, echo)
	if err != nil {
		t.Fatal(err)
	}
	a.knows("n", 1)
	if err := control.Drain(t.Context(), tunnel.Draining, "agent is stopping"); err != nil {
		t.Fatal(err)
	}
	<-gone
	a.knows("n", 0)
	failed := make(chan error, 1)
	go func() {
		_, err := a.open("n:1")
		failed <- err
	}()
	for a.metric("hawser_hub_dials_waiting") == 0 {
		select {
		case err := <-failed:
			t.Fatalf("it did not wait: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	b.hub.Forget("n")
	began := time.Now()
	if err := <-failed; !errors.Is(err, tunnel.NoNode) || time.Since(began) > 20*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestDrainingOwnerIsNotTheLast: if one server answers that the node is leaving, another is
// still tried. If that does not have the node, the first answer is returned.
func TestDrainingOwnerIsNotTheLast(t *testing.T) {
	f := newFleet(t, "a", "b", "c")
	a, b, c := f.servers["a"], f.servers["b"], f.servers["c"]
	control, _, err := b.greetAs("n", 1, echo)
	if err != nil {
		t.Fatal(err)
	}
	a.knows("n", 1)
	held, err := a.open("n:1") // else the session would end at once
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := control.Drain(t.Context(), tunnel.Draining, "agent is stopping"); err != nil {
		t.Fatal(err)
	}
	for s, _ := b.hub.Session("n"); !s.Draining; s, _ = b.hub.Session("n") {
		<-time.After(time.Millisecond)
	}
	a.peers.mu.Lock()
	stale := server.Observation{Node: "n", Change: server.Change{State: server.Attached}} // and older, so it is tried after b
	a.peers.links["c"].nodes["n"] = stale
	a.peers.mu.Unlock()
	dial := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, _, err := a.peers.Dial(ctx, "n", tunnel.Dial{Network: "tcp", Addr: "n:1"})
		return err
	}
	if err := dial(); !errors.Is(err, tunnel.Draining) {
		t.Errorf("%v, want that the node is leaving", err)
	}
	if n := c.metric("hawser_peer_requests_total"); n != 1 {
		t.Errorf("c was asked %v times", n)
	}
}
