// What the hub counts. No label has more values than there are codes.

package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
)

// An adder is a counter to who only counts.
type adder interface{ Add(float64) }

type metrics struct {
	sessions    prometheus.Gauge
	refused     *prometheus.CounterVec // by code
	ended       *prometheus.CounterVec // by code
	replaced    *prometheus.CounterVec // by reason
	clones      prometheus.Counter
	dials       *prometheus.CounterVec // by code
	dialSeconds prometheus.Histogram
	streams     *prometheus.GaugeVec // by opener
	toNode      prometheus.Counter
	fromNode    prometheus.Counter
	rtt         prometheus.Histogram
}

// newMetrics registers with r; nil works.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "hawser", Subsystem: "hub", Name: name, Help: help}
	}
	vec := func(label, name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), []string{label})
	}
	bytes := vec("direction", "bytes_total", "Payload carried through the tunnel.")
	m := &metrics{
		sessions: prometheus.NewGauge(prometheus.GaugeOpts(opts("sessions", "Connected nodes."))),
		refused:  vec("code", "sessions_refused_total", "Sessions that were turned away."),
		ended:    vec("code", "sessions_ended_total", "Sessions that ended, by reason."),
		replaced: vec("reason", "sessions_replaced_total", "Sessions replaced by a newer one of the same node."),
		clones: prometheus.NewCounter(prometheus.CounterOpts(opts("clones_total",
			"Attempts by an agent whose identity another live agent uses."))),
		dials: vec("code", "dials_total", "Dials into nodes, by result."),
		dialSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "hawser", Subsystem: "hub", Name: "dial_duration_seconds", Help: "Time until a dial into a node was answered.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("streams", "Open streams, by who opened them.")), []string{"opener"}),
		rtt: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "hawser", Subsystem: "hub", Name: "rtt_seconds", Help: "Round trips on the control streams.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
	}
	m.toNode, m.fromNode = bytes.WithLabelValues("to_node"), bytes.WithLabelValues("from_node")
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.sessions, m.refused, m.ended, m.replaced, m.clones, m.dials, m.dialSeconds, m.streams, bytes, m.rtt,
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// dialed counts a dial that took d.
func (m *metrics) dialed(err error, d time.Duration) {
	m.dials.WithLabelValues(label(err)).Inc()
	if err == nil {
		m.dialSeconds.Observe(d.Seconds())
	}
}

// label is the code of err as a label's value.
func label(err error) string {
	if err == nil {
		return "ok"
	}
	return tunnel.CodeOf(err).String()
}
