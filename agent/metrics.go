// Metrics of an Agent.

package agent

import (
	"errors"
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
)

// Who opened a stream.
const (
	inbound  = "in"  // a server
	outbound = "out" // the node
)

// metrics of one Agent.
type metrics struct {
	sessions *prometheus.CounterVec
	moves    *prometheus.CounterVec
	ledger   *ledger
	failures *prometheus.CounterVec
	ends     *prometheus.CounterVec
	dials    *prometheus.CounterVec
	open     *prometheus.GaugeVec
	bytes    *prometheus.CounterVec
	handles  map[string]func() handles // by direction; never changed
}

// handles are the metrics of the streams that one end opens, looked up once.
type handles struct {
	dialed         prometheus.Counter // streams that were opened
	open           prometheus.Gauge
	sent, received func(n int)
}

// newMetrics registers the metrics; with a nil registerer they are not exported.
func newMetrics(reg prometheus.Registerer, state func() State) *metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return export(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "hawser", Subsystem: "agent", Name: name, Help: help}, labels))
	}
	m := &metrics{
		sessions: counters("sessions_total", "Sessions established with a server, by transport.", "transport"),
		moves: counters("migrations_total",
			"Migrations to another connection (reason connection) or to a new session (fallback, address), by reason and result.", "reason", "result"),
		ledger:   export(reg, &ledger{live: make(map[*link]struct{})}),
		failures: counters("connect_failures_total", "Attempts to connect to a server that failed, by reason.", "reason"),
		ends:     counters("sessions_ended_total", "Sessions with a server that ended, by reason.", "reason"),
		dials:    counters("dials_total", "Streams opened, by direction (in: by a server, out: by the node) and result.", "direction", "result"),
		open: export(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "hawser_agent_streams", Help: "Open streams, by direction (in: opened by a server, out: opened by the node).",
		}, []string{"direction"})),
		bytes: counters("stream_bytes_total", "Bytes on streams, by direction (in, out) and way (sent to the server, received from it).", "direction", "way"),
	}
	m.handles = make(map[string]func() handles)
	for _, direction := range []string{inbound, outbound} {
		m.handles[direction] = sync.OnceValue(func() handles { return m.handlesOf(direction) }) // no series before the first stream
	}
	gauges(reg, state)
	return m
}

// export registers c, if there is a registerer, and returns it.
func export[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg != nil {
		reg.MustRegister(c)
	}
	return c
}

// gauges are the metrics of the state.
func gauges(reg prometheus.Registerer, state func() State) {
	gauge := func(name, help string, value func() float64) {
		export(reg, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "hawser", Subsystem: "agent", Name: name, Help: help}, value))
	}
	flag := func(name, help string, up func() bool) {
		gauge(name, help, func() float64 {
			if up() {
				return 1
			}
			return 0
		})
	}
	intake := tunnel.ProcessIntake()
	flag("connected", "1 if the agent has a session with a server and a connection for it.", func() bool { return state().Connected })
	flag("parked", "1 if the session with a server has no connection and is within the detach window.", func() bool { return !state().Parked.IsZero() })
	gauge("rtt_seconds", "Latest round trip to the server; 0 if not known.", func() float64 { return state().RTT.Seconds() })
	gauge("unread_bytes", "Bytes received on TCP sessions that the streams' readers have not read.", func() float64 { return float64(intake.Unread()) })
	gauge("unread_limit_bytes", "Limit of hawser_agent_unread_bytes. The server may send less as it is approached.", func() float64 { return float64(intake.Limit()) })
}

// began counts a session in.
func (m *metrics) began(l *link) {
	m.sessions.WithLabelValues(l.transport()).Inc()
	m.ledger.add(l)
}

// ended counts it out.
func (m *metrics) ended(l *link, reason string) {
	m.ends.WithLabelValues(reason).Inc()
	m.ledger.remove(l)
}

func (m *metrics) handlesOf(direction string) handles {
	count := func(way string) func(int) {
		bytes := m.bytes.WithLabelValues(direction, way)
		return func(n int) { bytes.Add(float64(n)) }
	}
	return handles{
		dialed: m.dials.WithLabelValues(direction, tunnel.Code(0).Name()), open: m.open.WithLabelValues(direction),
		sent: count("sent"), received: count("received"),
	}
}

// dial counts a stream; code 0 is success.
func (m *metrics) dial(direction string, code tunnel.Code) {
	if code == 0 {
		m.handles[direction]().dialed.Inc()
		return
	}
	m.dials.WithLabelValues(direction, code.Name()).Inc()
}

// reasonLabel is why an attempt failed or a session ended.
func reasonLabel(err error) string {
	if r, ok := errors.AsType[*Refusal](err); ok {
		switch {
		case errors.Is(r.Reason, ErrCertificateRejected):
			return "certificate"
		case errors.Is(r.Reason, ErrServerUntrusted):
			return "untrusted"
		case errors.Is(r.Reason, ErrNotServer):
			return "not_server"
		case errors.Is(r.Reason, ErrProxyRefused):
			return "proxy"
		}
	}
	return tunnel.CodeOf(err).Name()
}

// track counts a stream of a session and its bytes. done, if not nil, is called once, when
// the stream is closed or aborted.
func (m *metrics) track(direction string, c net.Conn, done func()) *tunnel.Tap {
	h := m.handles[direction]()
	h.open.Inc()
	return &tunnel.Tap{Conn: c, Received: h.received, Sent: h.sent, Ended: func(bool) {
		h.open.Dec()
		if done != nil {
			done()
		}
	}}
}

// trackTarget is track for the connection to the target of a server's stream: what is read
// from it is sent to the server.
func (m *metrics) trackTarget(c net.Conn, done func()) *tunnel.Tap {
	t := m.track(inbound, c, done)
	t.Received, t.Sent = t.Sent, t.Received
	return t
}

// Descriptions of what a ledger collects. They are written here once and never
// changed.
var (
	parksDesc   = linkDesc("parks_total", "Connections lost by sessions that continued.")
	resumesDesc = linkDesc("resumes_total", "Connections that took the place of others.")
	resentDesc  = linkDesc("retransmitted_bytes_total", "Bytes retransmitted on another connection.")
	bytesDesc   = linkDesc("bytes_total", "Bytes of sessions on their connections, without retransmissions, by way (sent, received).", "way")
	queuedDesc  = linkDesc("queued_bytes", "Bytes not sent or not acknowledged yet.")
)

func linkDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("hawser_agent_link_"+name, help, append([]string{"transport"}, labels...), nil)
}

// Describe implements prometheus.Collector.
func (g *ledger) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{parksDesc, resumesDesc, resentDesc, bytesDesc, queuedDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g *ledger) Collect(out chan<- prometheus.Metric) {
	st, transport := g.totals()
	if transport == "" {
		return
	}
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
