// Metrics of the hub: counters of events, and figures that are collected from the
// ledger. No label but that of nodes, which is bounded there, has more values
// than there are codes or transports.

package server

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	namespace = "hawser"
	subsystem = "hub"
)

type metrics struct {
	refused     *prometheus.CounterVec   // by code
	ended       *prometheus.CounterVec   // by transport, code
	replaced    *prometheus.CounterVec   // by reason
	clones      prometheus.Counter       //
	dials       *prometheus.CounterVec   // by transport, code
	dialSeconds *prometheus.HistogramVec // by transport
	rtt         *prometheus.HistogramVec // by transport
}

// newMetrics registers with r; nil works.
func newMetrics(r prometheus.Registerer, a *admission, awaiting func() int, i *tunnel.Intake) *metrics {
	f := promauto.With(r)
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
	}
	seconds := func(name, help string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"transport"})
	}
	gauge := func(name, help string, value func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)), value)
	}
	gauge("sessions_pending", "Sessions whose agent has not been admitted yet.", func() float64 { return float64(a.busy()) })
	gauge("dials_waiting", "Dials that wait for a node whose agent announced a restart.", func() float64 { return float64(awaiting()) })
	gauge("unread_bytes", "Bytes received on TCP sessions that the streams' readers have not read.", func() float64 { return float64(i.Unread()) })
	gauge("unread_limit_bytes", "Limit of hawser_hub_unread_bytes. Peers may send less as it is approached.", func() float64 { return float64(i.Limit()) })
	return &metrics{
		refused:     counters("sessions_refused_total", "Sessions that were refused, by reason.", "code"),
		ended:       counters("sessions_ended_total", "Sessions that ended, by reason.", "transport", "code"),
		replaced:    counters("sessions_replaced_total", "Sessions that were replaced by a newer one of the same node, by reason.", "reason"),
		clones:      f.NewCounter(prometheus.CounterOpts(opts("clones_total", "Sessions refused because another live agent uses the same identity."))),
		dials:       counters("dials_total", "Dials into nodes, by result.", "transport", "code"),
		dialSeconds: seconds("dial_duration_seconds", "Time until a dial into a node was answered."),
		rtt:         seconds("rtt_seconds", "Round-trip time of keepalives."),
	}
}

// dialed counts a dial that has succeeded or failed, and calls Config.Dialed.
func (h *Hub) dialed(ctx context.Context, w way, addr string, began time.Time, err error) {
	d := time.Since(began)
	if h.config.Dialed != nil {
		h.config.Dialed(ctx, Dialed{Addr: addr, Node: w.node, Transport: w.transport, Code: tunnel.CodeOf(err).Name(), Began: began, Took: d})
	}
	h.metrics.dials.WithLabelValues(w.transport, tunnel.CodeOf(err).Name()).Inc()
	if err == nil {
		h.metrics.dialSeconds.WithLabelValues(w.transport).Observe(d.Seconds())
	}
	switch {
	case w.member == nil:
	case err == nil:
		w.member.dialsMade.Add(1)
	default:
		w.member.dialsFailed.Add(1)
	}
}

// portMetrics count connections that were closed before they had sent a TLS hello.
type portMetrics = *prometheus.CounterVec

func newPortMetrics(r prometheus.Registerer) portMetrics {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: "port", Name: "connections_closed_total",
		Help: "Connections closed before they sent a TLS ClientHello, by reason.",
	}, []string{"reason"})
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
	wire := describe("link_bytes_total", "Bytes of sessions on their connections, without retransmissions,", "direction")
	return []series{
		{describe("sessions", "Sessions,"), gauge, "", func(a account) float64 { return float64(a.sessions) }},
		{describe("sessions_parked", "Sessions without a connection, within the detach window,"), gauge, "", func(a account) float64 { return float64(a.parked) }},
		{streams, gauge, openerServer, func(a account) float64 { return float64(a.byServer) }},
		{streams, gauge, openerAgent, func(a account) float64 { return float64(a.byAgent) }},
		{payload, counter, "to_node", func(a account) float64 { return float64(a.toNode) }},
		{payload, counter, "from_node", func(a account) float64 { return float64(a.fromNode) }},
		{wire, counter, "to_node", func(a account) float64 { return float64(a.sent) }},
		{wire, counter, "from_node", func(a account) float64 { return float64(a.received) }},
		{describe("link_retransmitted_bytes_total", "Bytes retransmitted on another connection,"), counter, "", func(a account) float64 { return float64(a.replayed) }},
		{describe("link_queued_bytes", "Bytes not sent or not acknowledged yet,"), gauge, "", func(a account) float64 { return float64(a.queued) }},
		{describe("link_connections", "Connections of sessions that can have several,"), gauge, "", func(a account) float64 { return float64(a.connections) }},
		{describe("link_parks_total", "Connections that sessions lost,"), counter, "", func(a account) float64 { return float64(a.parks) }},
		{describe("link_resumes_total", "Connections that took the place of others,"), counter, "", func(a account) float64 { return float64(a.resumes) }},
	}
}

// A collector shows a ledger, and the handshakes of listeners.
type collector struct {
	ledger      *ledger
	byTransport []series
	byNode      []series

	listeners            []tunnel.Listener
	handshakes, underway *prometheus.Desc
}

func newCollector(l *ledger, listeners []tunnel.Listener) *collector {
	const of = " by node; nodes above the limit are summed under an empty name."
	node := figures("node", "node_", of)
	dials := prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "node_dials_total"), "Dials by result and"+of, []string{"node", "result"}, nil)
	rtt := prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "node_rtt_seconds"), "Latest round trip,"+of, []string{"node"}, nil)
	node = append(node,
		series{dials, prometheus.CounterValue, "ok", func(a account) float64 { return float64(a.dialsMade) }},
		series{dials, prometheus.CounterValue, "error", func(a account) float64 { return float64(a.dialsFailed) }},
		series{rtt, prometheus.GaugeValue, "", func(a account) float64 { return a.rtt.Seconds() }})
	c := &collector{
		ledger: l, listeners: listeners, byTransport: figures("transport", "", " by transport."), byNode: node,
		handshakes: prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "handshakes_total"),
			"Handshakes of clients of the tunnel, by result; no_session counts those of done that led to no session.", []string{"transport", "result"}, nil),
		underway: prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "handshakes_in_progress"),
			"Handshakes of clients of the tunnel that have not ended.", []string{"transport"}, nil),
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
	for _, d := range c.listeners { // also one that has had no session: a series that is missing raises no alert
		byTransport[d.Transport()] = byTransport[d.Transport()]
	}
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
	for _, d := range c.listeners {
		h, sum := d.Handshakes(), sums[d.Transport()]
		sum.Done += h.Done
		sum.Failed += h.Failed
		sum.NoSession += h.NoSession
		sum.Refused += h.Refused
		sum.Underway += h.Underway
		sums[d.Transport()] = sum
	}
	for name, sum := range sums {
		for result, n := range map[string]uint64{"done": sum.Done, "failed": sum.Failed, "no_session": sum.NoSession, "refused": sum.Refused} {
			out <- prometheus.MustNewConstMetric(c.handshakes, prometheus.CounterValue, float64(n), name, result)
		}
		out <- prometheus.MustNewConstMetric(c.underway, prometheus.GaugeValue, float64(sum.Underway), name)
	}
}
