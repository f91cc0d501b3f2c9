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
	m := &metrics{
		sessions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_sessions_total", Help: "Sessions established with a server, by transport.",
		}, []string{"transport"}),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_migrations_total",
			Help: "Migrations to another connection (reason connection) or to a new session (fallback, address), by reason and result.",
		}, []string{"reason", "result"}),
		ledger: &ledger{live: make(map[*link]struct{})},
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_connect_failures_total", Help: "Attempts to connect to a server that failed, by reason.",
		}, []string{"reason"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_sessions_ended_total", Help: "Sessions with a server that ended, by reason.",
		}, []string{"reason"}),
		dials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_dials_total", Help: "Streams opened, by direction (in: by a server, out: by the node) and result.",
		}, []string{"direction", "result"}),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "hawser_agent_streams", Help: "Open streams, by direction (in: opened by a server, out: opened by the node).",
		}, []string{"direction"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_agent_stream_bytes_total", Help: "Bytes on streams, by direction (in, out) and way (sent to the server, received from it).",
		}, []string{"direction", "way"}),
	}
	m.handles = make(map[string]func() handles)
	for _, direction := range []string{inbound, outbound} {
		m.handles[direction] = sync.OnceValue(func() handles { return m.handlesOf(direction) }) // no series before the first stream
	}
	if reg == nil {
		return m
	}
	reg.MustRegister(m.sessions, m.moves, m.ledger, m.failures, m.ends, m.dials, m.open, m.bytes,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "hawser_agent_connected", Help: "1 if the agent has a session with a server and a connection for it.",
		}, func() float64 {
			if state().Connected {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "hawser_agent_parked", Help: "1 if the session with a server has no connection and is within the detach window.",
		}, func() float64 {
			if state().Parked.IsZero() {
				return 0
			}
			return 1
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "hawser_agent_rtt_seconds", Help: "Latest round trip to the server; 0 if not known.",
		}, func() float64 { return state().RTT.Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "hawser_agent_unread_bytes", Help: "Bytes received on TCP sessions that the streams' readers have not read.",
		}, func() float64 { return float64(tunnel.ProcessIntake().Unread()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "hawser_agent_unread_limit_bytes", Help: "Limit of hawser_agent_unread_bytes. The server may send less as it is approached.",
		}, func() float64 { return float64(tunnel.ProcessIntake().Limit()) }),
	)
	return m
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
	var r *Refusal
	if errors.As(err, &r) {
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
