// Ledger: what the connections below all sessions have seen, by transport.

package agent

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
)

// Descriptions of what a ledger collects. They are written here once and never
// changed.
var (
	parksDesc   = linkDesc("parks_total", "Connections that were lost under a session that outlived them.")
	resumesDesc = linkDesc("resumes_total", "Connections that a session took after its first.")
	resentDesc  = linkDesc("resent_bytes_total", "Bytes that had to be sent again.")
	bytesDesc   = linkDesc("bytes_total", "Bytes of sessions on the wire, once each, by way (sent, received).", "way")
	queuedDesc  = linkDesc("queued_bytes", "Bytes that wait to be sent or to be acknowledged.")
)

func linkDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("hawser_agent_link_"+name, help, append([]string{"transport"}, labels...), nil)
}

// A ledger adds up the states of links. It is a prometheus.Collector.
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
	st, _ := tunnel.LinkOf(l.session)
	st.Queued = 0
	g.ended[l.transport] = sum(g.ended[l.transport], st)
}

// sum adds what can be added up.
func sum(a, b tunnel.LinkState) tunnel.LinkState {
	return tunnel.LinkState{
		Parks: a.Parks + b.Parks, Resumes: a.Resumes + b.Resumes, Replayed: a.Replayed + b.Replayed,
		Sent: a.Sent + b.Sent, Received: a.Received + b.Received, Queued: a.Queued + b.Queued,
	}
}

// Describe implements prometheus.Collector.
func (g *ledger) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{parksDesc, resumesDesc, resentDesc, bytesDesc, queuedDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g *ledger) Collect(out chan<- prometheus.Metric) {
	for transport, st := range g.totals() {
		count := func(d *prometheus.Desc, v uint64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{transport}, labels...)...)
		}
		count(parksDesc, st.Parks)
		count(resumesDesc, st.Resumes)
		count(resentDesc, st.Replayed)
		count(bytesDesc, st.Sent, "sent")
		count(bytesDesc, st.Received, "received")
		out <- prometheus.MustNewConstMetric(queuedDesc, prometheus.GaugeValue, float64(st.Queued), transport)
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
		st, _ := tunnel.LinkOf(l.session)
		all[l.transport] = sum(all[l.transport], st)
	}
	return all
}
