// This file has the metrics.

package pods

import "github.com/prometheus/client_golang/prometheus"

// Metrics of a Runner.
type Metrics struct {
	workers prometheus.Gauge
	starts  *prometheus.CounterVec
	probes  *prometheus.CounterVec
	writes  *prometheus.CounterVec
}

// NewMetrics registers the metrics; reg may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		workers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "hawser_node_pods", Help: "Pods assigned to this node.",
		}),
		starts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_node_container_starts_total", Help: "Container starts, by result (ok, failed, misconfigured).",
		}, []string{"result"}),
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_node_probes_failed_total", Help: "Failed probes, by kind (startup, liveness, readiness).",
		}, []string{"kind"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_node_pod_writes_total", Help: "Writes of pods and their status to the API, by verb and result.",
		}, []string{"verb", "result"}),
	}
	if reg != nil {
		reg.MustRegister(m.workers, m.starts, m.probes, m.writes)
	}
	return m
}
