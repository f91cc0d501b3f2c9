// The ledger: what each session has carried, added up by transport and by node
// when somebody asks.

package server

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
)

// Traffic is counted by those who move it.
type traffic struct {
	toNode, fromNode atomic.Uint64 // payload, in bytes
	byServer         atomic.Int64  // streams open, by who opened them
	byAgent          atomic.Int64
}

// An account is a sum. The first group is about now, and of no use once a session
// has ended; the others only grow.
type account struct {
	sessions, parked, queued int
	byServer, byAgent        int64
	rtt                      time.Duration // the longest

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
	a.byServer += b.byServer
	a.byAgent += b.byAgent
	a.rtt = max(a.rtt, b.rtt)
	a.keep(b)
}

// keep adds what of b outlives its session.
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
		byServer: t.byServer.Load(), byAgent: t.byAgent.Load(),
		toNode: t.toNode.Load(), fromNode: t.fromNode.Load(),
	}
}

// account is the session's.
func (m *member) account() account {
	a := m.traffic.account()
	a.sessions, a.rtt = 1, m.control.RTT()
	a.dialsMade, a.dialsFailed = m.dialsMade.Load(), m.dialsFailed.Load()
	if l, ok := tunnel.LinkOf(m.session); ok {
		if !l.Parked.IsZero() {
			a.parked = 1
		}
		a.queued = l.Queued
		a.sent, a.received, a.replayed = l.Sent, l.Received, l.Replayed
		a.parks, a.resumes = l.Parks, l.Resumes
	}
	return a
}

// A ledger has the sessions that are there and the sums of those that were. It is
// a prometheus.Collector.
type ledger struct {
	maxNodes int
	beyond   string  // the transport of what goes around the tunnel
	around   traffic // and its traffic

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

// open enters m.
func (l *ledger) open(m *member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live[m.node] == nil {
		l.live[m.node] = make(map[*member]struct{})
	}
	l.live[m.node][m] = struct{}{}
}

// close makes m's account one of the past.
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

// sums adds everything up. Nodes beyond the limit, in the order of their names,
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
	if around := l.around.account(); around != (account{}) {
		t := byTransport[l.beyond]
		t.add(around)
		byTransport[l.beyond] = t
	}
	return byTransport, byNode
}

// A series is how one figure of an account is shown.
type series struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	label string // the second label's value; empty if there is none
	value func(account) float64
}

// figures are all that is shown of an account under the given first label.
func figures(label, prefix, of string) []series {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, prefix+name), help+of, append([]string{label}, labels...), nil)
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	streams := describe("streams", "Open streams by who opened them,", "opener")
	payload := describe("bytes_total", "Payload carried through the tunnel,", "direction")
	wire := describe("link_bytes_total", "Bytes on the links, once each,", "direction")
	return []series{
		{describe("sessions", "Sessions,"), gauge, "", func(a account) float64 { return float64(a.sessions) }},
		{describe("sessions_parked", "Sessions that wait for another connection,"), gauge, "", func(a account) float64 { return float64(a.parked) }},
		{streams, gauge, openerServer, func(a account) float64 { return float64(a.byServer) }},
		{streams, gauge, openerAgent, func(a account) float64 { return float64(a.byAgent) }},
		{payload, counter, "to_node", func(a account) float64 { return float64(a.toNode) }},
		{payload, counter, "from_node", func(a account) float64 { return float64(a.fromNode) }},
		{wire, counter, "to_node", func(a account) float64 { return float64(a.sent) }},
		{wire, counter, "from_node", func(a account) float64 { return float64(a.received) }},
		{describe("link_replayed_bytes_total", "Bytes sent again on another connection,"), counter, "", func(a account) float64 { return float64(a.replayed) }},
		{describe("link_queued_bytes", "Bytes that wait to be sent or acknowledged,"), gauge, "", func(a account) float64 { return float64(a.queued) }},
		{describe("link_parks_total", "Connections that sessions lost,"), counter, "", func(a account) float64 { return float64(a.parks) }},
		{describe("link_resumes_total", "Connections that sessions took after their first,"), counter, "", func(a account) float64 { return float64(a.resumes) }},
	}
}

// A collector shows a ledger, and the handshakes of listeners.
type collector struct {
	ledger      *ledger
	byTransport []series
	byNode      []series

	doors                []tunnel.Doorkeeper
	handshakes, underway *prometheus.Desc
}

func newCollector(l *ledger, listeners []tunnel.Listener) *collector {
	const of = " by node; those above the limit together."
	node := figures("node", "node_", of)
	dials := prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "node_dials_total"), "Dials by result and"+of, []string{"node", "result"}, nil)
	rtt := prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "node_rtt_seconds"), "Latest round trip,"+of, []string{"node"}, nil)
	node = append(node,
		series{dials, prometheus.CounterValue, "ok", func(a account) float64 { return float64(a.dialsMade) }},
		series{dials, prometheus.CounterValue, "error", func(a account) float64 { return float64(a.dialsFailed) }},
		series{rtt, prometheus.GaugeValue, "", func(a account) float64 { return a.rtt.Seconds() }})
	c := &collector{
		ledger: l, byTransport: figures("transport", "", " by transport."), byNode: node,
		handshakes: prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "handshakes_total"),
			"Handshakes of clients of the tunnel, by result.", []string{"transport", "result"}, nil),
		underway: prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "handshakes_underway"),
			"Handshakes of clients of the tunnel that are not over.", []string{"transport"}, nil),
	}
	for _, listener := range listeners {
		if d, ok := listener.(tunnel.Doorkeeper); ok {
			c.doors = append(c.doors, d)
		}
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, s := range slices.Concat(c.byTransport, c.byNode) {
		if s.label == "" || s.label == openerServer || s.label == "to_node" || s.label == "ok" {
			out <- s.desc // once each
		}
	}
	out <- c.handshakes
	out <- c.underway
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	byTransport, byNode := c.ledger.sums()
	show := func(all map[string]account, figures []series) {
		for key, a := range all {
			for _, s := range figures {
				labels := []string{key}
				if s.label != "" {
					labels = append(labels, s.label)
				}
				out <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(a), labels...)
			}
		}
	}
	show(byTransport, c.byTransport)
	show(byNode, c.byNode)
	c.collectHandshakes(out)
}

// collectHandshakes shows one series for each transport, however many listeners
// it has.
func (c *collector) collectHandshakes(out chan<- prometheus.Metric) {
	sums := make(map[string]tunnel.Handshakes)
	for _, d := range c.doors {
		h, sum := d.Handshakes(), sums[d.Transport()]
		sum.Done += h.Done
		sum.Failed += h.Failed
		sum.Refused += h.Refused
		sum.Underway += h.Underway
		sums[d.Transport()] = sum
	}
	for name, sum := range sums {
		for result, n := range map[string]uint64{"done": sum.Done, "failed": sum.Failed, "refused": sum.Refused} {
			out <- prometheus.MustNewConstMetric(c.handshakes, prometheus.CounterValue, float64(n), name, result)
		}
		out <- prometheus.MustNewConstMetric(c.underway, prometheus.GaugeValue, float64(sum.Underway), name)
	}
}
