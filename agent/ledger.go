// Ledger: statistics of the sessions' connections, by transport.

package agent

import (
	"sync"

	"github.com/hawser-project/hawser/tunnel"
)

// A ledger sums the statistics of links. It is a prometheus.Collector.
type ledger struct {
	mu    sync.Mutex // guards the following
	live  map[*link]struct{}
	ended map[string]tunnel.LinkState // sums, by transport
}

func newLedger() *ledger {
	return &ledger{live: make(map[*link]struct{}), ended: make(map[string]tunnel.LinkState)}
}

func (g *ledger) add(l *link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.live[l] = struct{}{}
}

func (g *ledger) remove(l *link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.live, l)
	st := l.session.Link()
	st.Queued = 0
	g.ended[l.transport()] = sum(g.ended[l.transport()], st)
}

// sum adds the counters.
func sum(a, b tunnel.LinkState) tunnel.LinkState {
	return tunnel.LinkState{
		Parks: a.Parks + b.Parks, Resumes: a.Resumes + b.Resumes, Replayed: a.Replayed + b.Replayed,
		Sent: a.Sent + b.Sent, Received: a.Received + b.Received, Queued: a.Queued + b.Queued,
	}
}

func (g *ledger) totals() map[string]tunnel.LinkState {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]tunnel.LinkState, len(g.ended)+len(g.live))
	for transport, st := range g.ended {
		all[transport] = st
	}
	for l := range g.live {
		all[l.transport()] = sum(all[l.transport()], l.session.Link())
	}
	return all
}
