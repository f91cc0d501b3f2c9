// This file counts.

package node

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	writes *prometheus.CounterVec
	ready  prometheus.Gauge
}

// newMetrics registers the metrics; a nil registerer makes ones that nobody reads.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_node_status_writes_total", Help: "Writes of the node's status by result: ok or failed.",
		}, []string{"result"}),
		ready: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "hawser_node_ready", Help: "1 while the node says that it is ready.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.writes, m.ready)
	}
	return m
}
