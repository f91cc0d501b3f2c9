package tainteviction

// What the controller counts, by the names that Kubernetes gives it.

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/controlplane/loop"
)

type metrics struct {
	deletions prometheus.Counter
	latency   prometheus.Histogram
}

// newMetrics registers with r; nil works. Several controllers that are made in
// turn for the same registry share what it has.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	const subsystem = "taint_eviction_controller"
	m := &metrics{
		deletions: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: subsystem, Name: "pod_deletions_total",
			Help: "Pods deleted because of a NoExecute taint.",
		}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Subsystem: subsystem, Name: "pod_deletion_duration_seconds",
			Help:    "Time from when a pod had to go because of a NoExecute taint until it was deleted.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
		}),
	}
	if err := errors.Join(loop.Register(r, &m.deletions), loop.Register(r, &m.latency)); err != nil {
		return nil, fmt.Errorf("register the metrics of taint eviction: %w", err)
	}
	return m, nil
}

func (m *metrics) deleted(late time.Duration) {
	m.deletions.Inc()
	m.latency.Observe(late.Seconds())
}
