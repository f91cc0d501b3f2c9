// What the hub counts as it happens. What it finds out only when asked is in
// ledger.go. No label but that of nodes, which is bounded there, has more values
// than there are codes or transports.

package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	namespace = "hawser"
	subsystem = "hub"
)

type metrics struct {
	refused     *prometheus.CounterVec   // by code
	greeting    prometheus.GaugeFunc     //
	ended       *prometheus.CounterVec   // by transport, code
	replaced    *prometheus.CounterVec   // by reason
	clones      prometheus.Counter       //
	dials       *prometheus.CounterVec   // by transport, code
	dialSeconds *prometheus.HistogramVec // by transport
	rtt         *prometheus.HistogramVec // by transport
}

// newMetrics registers with r; nil works.
func newMetrics(r prometheus.Registerer, a *admission) (*metrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
	}
	seconds := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"transport"})
	}
	m := &metrics{
		refused:     counters("sessions_refused_total", "Sessions that were turned away, by reason.", "code"),
		greeting:    prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("sessions_greeting", "Sessions that have not been welcomed yet.")), func() float64 { return float64(a.busy()) }),
		ended:       counters("sessions_ended_total", "Sessions that ended, by reason.", "transport", "code"),
		replaced:    counters("sessions_replaced_total", "Sessions that a newer one of the same node followed.", "reason"),
		clones:      prometheus.NewCounter(prometheus.CounterOpts(opts("clones_total", "Attempts by an agent whose identity another live agent uses."))),
		dials:       counters("dials_total", "Dials into nodes, by result.", "transport", "code"),
		dialSeconds: seconds("dial_duration_seconds", "Time until a dial into a node was answered."),
		rtt:         seconds("rtt_seconds", "Round trips on the control streams."),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.refused, m.greeting, m.ended, m.replaced, m.clones, m.dials, m.dialSeconds, m.rtt} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// dialed counts a dial that took d.
func (h *Hub) dialed(w way, err error, d time.Duration) {
	h.metrics.dials.WithLabelValues(w.transport, label(err)).Inc()
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

// label is the code of err as a label's value.
func label(err error) string {
	if err == nil {
		return "ok"
	}
	return tunnel.CodeOf(err).String()
}
