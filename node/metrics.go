// Metrics of a Node.

package node

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	writes *prometheus.CounterVec
	ready  prometheus.Gauge
	fenced prometheus.Gauge

	shutdown shutdownMetrics
}

// newMetrics registers the metrics; with a nil registerer they are not exported.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_node_status_writes_total", Help: "Writes of the node's status, by result (ok, failed).",
		}, []string{"result"}),
		ready: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "hawser_node_ready", Help: "1 while the node reports the condition Ready.",
		}),
		fenced: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "hawser_node_fenced", Help: "1 while another agent with this node's identity has its place.",
		}),
		shutdown: newShutdownMetrics(),
	}
	if reg != nil {
		reg.MustRegister(m.writes, m.ready, m.fenced, m.shutdown.start, m.shutdown.end)
	}
	return m
}

// fence sets whether the fence is up.
func (m *metrics) fence(up bool) {
	m.fenced.Set(0)
	if up {
		m.fenced.Set(1)
	}
}

// shutdownMetrics show shutdownTimes, by the kubelet's names.
type shutdownMetrics struct{ start, end prometheus.Gauge }

func newShutdownMetrics() shutdownMetrics {
	return shutdownMetrics{
		start: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_graceful_shutdown_start_time_seconds", Help: "Unix time at which the last shutdown of the machine began to terminate pods; 0 if there was none.",
		}),
		end: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_graceful_shutdown_end_time_seconds", Help: "Unix time at which the last shutdown of the machine had terminated its pods; 0 if it has not.",
		}),
	}
}

func (m shutdownMetrics) set(t shutdownTimes) {
	seconds := func(at time.Time) float64 {
		if at.IsZero() {
			return 0
		}
		return float64(at.UnixMilli()) / 1000
	}
	m.start.Set(seconds(t.Start))
	m.end.Set(seconds(t.End))
}
