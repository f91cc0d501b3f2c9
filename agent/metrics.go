// What the agent counts.

package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
)

type metrics struct {
	connected prometheus.Gauge
	failures  *prometheus.CounterVec // by code
	requests  *prometheus.CounterVec // by code
	rtt       prometheus.Gauge
}

// newMetrics registers with r; nil works.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "hawser", Subsystem: "agent", Name: name, Help: help}
	}
	m := &metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts(opts("connected", "1 while there is a session with a server."))),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts(opts("link_failures_total",
			"Attempts to connect that failed and sessions that ended.")), []string{"code"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(opts("requests_total",
			"Streams that the server opened, by result.")), []string{"code"}),
		rtt: prometheus.NewGauge(prometheus.GaugeOpts(opts("rtt_seconds", "Latest round trip to the server."))),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.connected, m.failures, m.requests, m.rtt} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) dialed(err error) {
	code := "ok"
	if err != nil {
		code = tunnel.CodeOf(err).String()
	}
	m.requests.WithLabelValues(code).Inc()
}
