package nodelifecycle

// Metrics: those of Kubernetes under their names, and what they do not tell.

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/controlplane/loop"
)

type metrics struct {
	zoneHealth, zoneSize, unhealthy *prometheus.GaugeVec
	evictions                       *prometheus.CounterVec
	oneNode, allNodes               prometheus.Histogram
	rate, waiting, frozen           *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	gauge := func(name, help, label string) *prometheus.GaugeVec {
		return loop.MustRegister(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label}))
	}
	seconds := func(name, help string, first float64) prometheus.Histogram {
		return loop.MustRegister(r, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(first, 4, 8),
		}))
	}
	return &metrics{
		zoneHealth: gauge("node_collector_zone_health", "Share of a zone's nodes that are ready, in percent.", "zone"),
		zoneSize:   gauge("node_collector_zone_size", "Nodes of a zone.", "zone"),
		unhealthy:  gauge("node_collector_unhealthy_nodes_in_zone", "Nodes of a zone that are not ready.", "zone"),
		evictions: loop.MustRegister(r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "node_collector_evictions_total",
			Help: "Nodes of a zone that were given a NoExecute taint because they were not ready.",
		}, []string{"zone"})),
		oneNode: seconds("node_collector_update_node_health_duration_seconds",
			"Time to look at one node and do what follows.", 0.001),
		allNodes: seconds("node_collector_update_all_nodes_health_duration_seconds",
			"Time of a pass over all nodes.", 0.01),
		rate:    gauge("hawser_eviction_rate_nodes_per_second", "Rate at which nodes of a zone may be given a NoExecute taint; 0 while evictions are stopped.", "zone"),
		waiting: gauge("hawser_eviction_waiting_nodes", "Nodes of a zone that wait for a NoExecute taint.", "zone"),
		frozen:  gauge("hawser_eviction_frozen_nodes", "Nodes without heartbeats whose eviction is frozen, by reason.", "reason"),
	}
}

// counted tells a zone's numbers after a pass.
func (m *metrics) counted(zone string, t tally, rate float32, waiting int) {
	m.zoneSize.WithLabelValues(zone).Set(float64(t.size()))
	m.zoneHealth.WithLabelValues(zone).Set(t.health())
	m.unhealthy.WithLabelValues(zone).Set(float64(t.notReady))
	m.rate.WithLabelValues(zone).Set(float64(rate))
	m.waiting.WithLabelValues(zone).Set(float64(waiting))
}

// gone tells that a zone has no nodes any more.
func (m *metrics) gone(zone string) {
	m.zoneSize.WithLabelValues(zone).Set(0)
	m.zoneHealth.WithLabelValues(zone).Set(100)
	m.unhealthy.WithLabelValues(zone).Set(0)
	m.rate.DeleteLabelValues(zone)
	m.waiting.DeleteLabelValues(zone)
}
