// The ledger: the traffic of each session, summed by transport and by node for each scrape.

package server

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Traffic counts payload and open streams; the streams update it.
type traffic struct {
	toNode, fromNode atomic.Uint64 // payload, in bytes
	dialed           Tally         // open streams that the hub opened
	taken            atomic.Int64  // open streams that the agent opened
	open             Tally         // both
}

// An account is a sum. The first group are gauges, which end with a session; the others are
// counters.
type account struct {
	sessions, parked, queued, connections int
	byServer, byAgent                     int           // open streams, by who opened them
	rtt                                   time.Duration // the longest

	toNode, fromNode         uint64
	sent, received, replayed uint64
	parks, resumes           uint64
	dialsMade, dialsFailed   uint64
}

// add adds what b counts.
func (a *account) add(b account) {
	a.sessions += b.sessions
	a.parked += b.parked
	a.queued += b.queued
	a.connections += b.connections
	a.byServer += b.byServer
	a.byAgent += b.byAgent
	a.rtt = max(a.rtt, b.rtt)
	a.keep(b)
}

// keep adds the counters of b, whose session has ended.
func (a *account) keep(b account) {
	a.toNode += b.toNode
	a.fromNode += b.fromNode
	a.sent += b.sent
	a.received += b.received
	a.replayed += b.replayed
	a.parks += b.parks
	a.resumes += b.resumes
	a.dialsMade += b.dialsMade
	a.dialsFailed += b.dialsFailed
}

func (t *traffic) account() account {
	return account{
		byServer: t.dialed.Count(), byAgent: int(t.taken.Load()),
		toNode: t.toNode.Load(), fromNode: t.fromNode.Load(),
	}
}

// account is the session's.
func (m *member) account() account {
	a := m.traffic.account()
	a.sessions, a.rtt = 1, m.control.RTT()
	a.dialsMade, a.dialsFailed = m.dialsMade.Load(), m.dialsFailed.Load()
	l := m.session.Link()
	if !l.Parked.IsZero() {
		a.parked = 1
	}
	a.queued, a.connections = l.Queued, l.Connections
	a.sent, a.received, a.replayed = l.Sent, l.Received, l.Replayed
	a.parks, a.resumes = l.Parks, l.Resumes
	return a
}

// A ledger has the current sessions and the sums of ended ones. It is a
// prometheus.Collector.
type ledger struct {
	maxNodes  int
	beyond    string  // the transport of dials without a tunnel
	around    traffic // their traffic
	elsewhere traffic // of dials through other servers

	mu     sync.Mutex // guards the following
	live   map[string]map[*member]struct{}
	byNode map[string]account // of ended sessions, while the node has others
	past   map[string]account // of ended sessions, by transport
}

func newLedger(maxNodes int, beyond string) *ledger {
	return &ledger{
		maxNodes: maxNodes, beyond: beyond,
		live:   make(map[string]map[*member]struct{}),
		byNode: make(map[string]account), past: make(map[string]account),
	}
}

// open adds m.
func (l *ledger) open(m *member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live[m.node] == nil {
		l.live[m.node] = make(map[*member]struct{})
	}
	l.live[m.node][m] = struct{}{}
}

// close adds m's account to the sums of ended sessions.
func (l *ledger) close(m *member) {
	last := m.account()
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := l.past[m.transport]
	sum.keep(last)
	l.past[m.transport] = sum
	delete(l.live[m.node], m)
	if len(l.live[m.node]) == 0 {
		delete(l.live, m.node)
		delete(l.byNode, m.node)
		return
	}
	sum = l.byNode[m.node]
	sum.keep(last)
	l.byNode[m.node] = sum
}

// sums returns the sums by transport and by node. Nodes above the limit, sorted by name,
// share the empty name.
func (l *ledger) sums() (byTransport, byNode map[string]account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	byTransport, byNode = maps.Clone(l.past), make(map[string]account)
	for i, node := range slices.Sorted(maps.Keys(l.live)) {
		sum := l.byNode[node]
		for m := range l.live[node] {
			a := m.account()
			sum.add(a)
			t := byTransport[m.transport]
			t.add(a)
			byTransport[m.transport] = t
		}
		if i >= l.maxNodes {
			node = ""
		}
		rest := byNode[node]
		rest.add(sum)
		byNode[node] = rest
	}
	for name, other := range map[string]account{l.beyond: l.around.account(), viaPeer: l.elsewhere.account()} {
		if other != (account{}) {
			t := byTransport[name]
			t.add(other)
			byTransport[name] = t
		}
	}
	return byTransport, byNode
}
