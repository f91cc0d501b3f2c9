// This file counts.

package node

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	writes *prometheus.CounterVec
	ready  prometheus.Gauge
	fenced prometheus.Gauge

	shutdown shutdownMetrics
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
		fenced: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "hawser_node_fenced", Help: "1 while another agent with this node's identity is the node.",
		}),
		shutdown: newShutdownMetrics(),
	}
	if reg != nil {
		reg.MustRegister(m.writes, m.ready, m.fenced, m.shutdown.start, m.shutdown.end)
	}
	return m
}

// fence says whether the fence is up.
func (m *metrics) fence(up bool) {
	m.fenced.Set(0)
	if up {
		m.fenced.Set(1)
	}
}
