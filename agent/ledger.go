// Ledger: statistics of the connections of an agent's sessions.

package agent

import (
	"sync"

	"github.com/hawser-project/hawser/tunnel"
)

// A ledger sums the statistics of links. It is a prometheus.Collector.
type ledger struct {
	mu        sync.Mutex // guards the following
	live      map[*link]struct{}
	ended     tunnel.LinkState // sums
	transport string           // of all links; empty before the first
}

func (g *ledger) add(l *link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.live[l], g.transport = struct{}{}, l.transport()
}

func (g *ledger) remove(l *link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.live, l)
	st := l.session.Link()
	st.Queued = 0
	g.ended = sum(g.ended, st)
}

// sum adds the counters.
func sum(a, b tunnel.LinkState) tunnel.LinkState {
	return tunnel.LinkState{
		Parks: a.Parks + b.Parks, Resumes: a.Resumes + b.Resumes, Replayed: a.Replayed + b.Replayed,
		Sent: a.Sent + b.Sent, Received: a.Received + b.Received, Queued: a.Queued + b.Queued,
	}
}

// totals are the sums of all links, and their transport; empty if there has been none.
func (g *ledger) totals() (all tunnel.LinkState, transport string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all = g.ended
	for l := range g.live {
		all = sum(all, l.session.Link())
	}
	return all, g.transport
}
