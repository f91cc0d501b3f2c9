package peers

// What is kept of servers that do not return.

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser/server"
)

// TestRemovedServers: what removed servers said of a node is kept until something later is
// known of the node.
func TestRemovedServers(t *testing.T) {
	f := newFleet(t, "a")
	a := f.servers["a"]
	a.join("here", echo)
	p, now := a.peers, time.Now()
	defer func() { // they have no goroutines to end
		p.mu.Lock()
		defer p.mu.Unlock()
		clear(p.links)
	}()
	said := func(id string, at time.Time, nodes ...string) {
		l := p.link(Peer{ID: id})
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, node := range nodes {
			l.nodes[node] = server.Observation{Node: node, Change: server.Change{At: at, State: server.Detached}}
		}
	}
	said("old", now.Add(-time.Hour), "here", "there", "nowhere")
	said("new", now.Add(-time.Minute), "there")
	said("restarting", now.Add(-2*time.Hour), "here", "nowhere")
	p.dropReplaced([]Peer{{ID: "restarting"}})
	p.mu.Lock()
	kept := make(map[string][]string)
	for id, l := range p.links {
		kept[id] = slices.Sorted(maps.Keys(l.nodes))
	}
	p.mu.Unlock()
	for id, want := range map[string][]string{"old": {"nowhere"}, "new": {"there"}, "restarting": {"here", "nowhere"}} {
		if !slices.Equal(kept[id], want) {
			t.Errorf("of server %s these are kept: %q, want %q", id, kept[id], want)
		}
	}
}
