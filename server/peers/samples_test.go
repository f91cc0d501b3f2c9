// Tests of the samples of sessions that servers announce to each other.

package peers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

// TestSamples: a server knows the open streams of sessions with another server, and nothing of
// sessions that have ended.
func TestSamples(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b")
	a, b := f.servers["a"], f.servers["b"]
	a.join("node-1", echo)
	b.join("node-2", echo)
	a.knows("node-2", 1)
	c, err := a.open("node-2:80") // through b
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	streams := func(s *testServer, node string) int {
		n := -1
		for _, sample := range s.peers.Samples() {
			if sample.Node == node {
				n = max(n, 0) + sample.Streams
			}
		}
		return n
	}
	limit := time.After(30 * time.Second) // two samples, on a slow machine
	wait := func(what string, ok func() bool) {
		t.Helper()
		for {
			news := a.peers.Changed()
			if ok() {
				return
			}
			select {
			case <-news:
			case <-limit:
				t.Fatalf("%s: %+v", what, a.peers.Samples())
			}
		}
	}
	wait("a stream of another server's session is not known", func() bool { return streams(a, "node-2") == 1 })
	if n := streams(a, "node-1"); n != 0 {
		t.Errorf("its own session has %d streams", n)
	}
	if n := len(SamplesOf(a.hub)); n != 1 {
		t.Errorf("its own hub has %d samples", n)
	}
	if s := SamplesOf(a.hub)[0]; s.Quiet <= 0 || s.Quiet > time.Minute {
		t.Errorf("its own session has been quiet for %v", s.Quiet)
	}
	b.kill()
	wait("a server that is gone has sessions", func() bool { return streams(a, "node-2") == -1 })
}

// TestEvictions: a server knows what the one that decides about evictions says of them, who
// that is, and nothing once that stops deciding or is gone.
func TestEvictions(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a", "b", "c")
	a, b, c := f.servers["a"], f.servers["b"], f.servers["c"]
	until := time.Now().Add(time.Hour).Round(time.Second)
	many := make([]Freeze, maxFrozen+1)
	for i := range many {
		many[i] = Freeze{Node: strings.Repeat("n", 247) + fmt.Sprintf("%06d", i), Reason: strings.Repeat("R", 64), Until: until}
	}
	limit := time.After(60 * time.Second) // some samples, on a slow machine
	wait := func(what string, ok func(Evictions, bool) bool) {
		t.Helper()
		for {
			news := a.peers.Changed()
			e, known := a.peers.Evictions()
			if ok(e, known) {
				return
			}
			select {
			case <-news:
			case <-limit:
				t.Fatalf("%s: %s, %d freezes, %v", what, e.Server, len(e.Frozen), known)
			}
		}
	}
	said := time.Now()
	b.says.Store(&Evictions{Decides: true, Frozen: many})
	wait("what the leader says is not known", func(e Evictions, known bool) bool {
		return known && e.Server == "b" && !e.At.Before(said) && len(e.Frozen) == maxFrozen && e.Frozen[1].Node == many[1].Node && e.Frozen[1].Until.Equal(until)
	})
	if _, known := b.peers.Evictions(); known {
		t.Error("a server takes its own words for another's")
	}
	b.says.Store(&Evictions{})
	c.says.Store(&Evictions{Decides: true, Frozen: []Freeze{{Node: "node-1", Reason: "SiteLostNetwork"}}})
	wait("the next leader is not known", func(e Evictions, known bool) bool {
		return known && e.Server == "c" && len(e.Frozen) == 1 && e.Frozen[0] == Freeze{Node: "node-1", Reason: "SiteLostNetwork"}
	})
	c.kill()
	wait("a server that is gone decides", func(_ Evictions, known bool) bool { return !known })
}

// TestSamplesOfStrangers: a sample counts for nodes whose session was announced.
func TestSamplesOfStrangers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "a")
	p := f.servers["a"].peers
	l := p.link(Peer{ID: "b"})
	there := func(node string, s server.State) server.Observation {
		return server.Observation{Node: node, Change: server.Change{State: s}}
	}
	l.begin(t.Context(), struct{ tunnel.Session }{}, map[string]server.Observation{
		"here": there("here", server.Attached), "parked": there("parked", server.Parked), "past": there("past", server.Detached),
	}, false)
	samples := func() map[string]Sample {
		all := make(map[string]Sample)
		for _, s := range p.Samples() {
			all[s.Node] = s
		}
		return all
	}
	m := message{}
	for _, node := range []string{"here", "parked", "past", "never"} {
		m.Samples = append(m.Samples, Sample{Node: node, RTT: time.Second, Streams: 2})
	}
	l.change(&m)
	got := samples()
	if len(got) != 2 || got["here"] != (Sample{Node: "here", RTT: time.Second, Streams: 2}) || got["parked"] != (Sample{Node: "parked", Streams: 2}) {
		t.Errorf("%+v", got)
	}
	l.change(&message{Gone: []string{"here"}})
	l.change(&message{Nodes: []server.Observation{there("here", server.Attached)}})
	if got = samples(); len(got) != 1 {
		t.Errorf("a node that was forgotten comes back with the sample of before: %+v", got)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, "b") // it has no goroutine to end
}
