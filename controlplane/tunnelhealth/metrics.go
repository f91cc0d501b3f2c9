package tunnelhealth

// Metrics of probes, writes and events.

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/controlplane/loop"
)

type metrics struct {
	probes  *prometheus.CounterVec // by result
	seconds prometheus.Histogram
	writes  *prometheus.CounterVec // by result
	dropped prometheus.Counter
}

// newMetrics registers with r; nil works.
func newMetrics(r prometheus.Registerer) *metrics {
	const prefix = "hawser_tunnel_health_"
	results := func(name, help string) *prometheus.CounterVec {
		return loop.MustRegister(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{"result"}))
	}
	return &metrics{
		probes: results("probes_total", "Health probes of kubelets through the tunnel, by result."),
		seconds: loop.MustRegister(r, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "probe_duration_seconds", Help: "Time until a kubelet answered a health probe.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2.5, 9),
		})),
		writes: results("writes_total", "Writes of nodes' conditions, by result."),
		dropped: loop.MustRegister(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "events_dropped_total", Help: "Events about sessions that were dropped because there were too many.",
		})),
	}
}

func (m *metrics) probed(err error, d time.Duration) {
	m.probes.WithLabelValues(outcome(err)).Inc()
	if err == nil {
		m.seconds.Observe(d.Seconds())
	}
}

func (m *metrics) wrote(err error) { m.writes.WithLabelValues(outcome(err)).Inc() }

func outcome(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}
