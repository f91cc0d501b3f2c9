package tainteviction

// What the controller counts, by the names that Kubernetes gives it.

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	if r == nil {
		return m, nil
	}
	var err error
	if m.deletions, err = register(r, m.deletions); err != nil {
		return nil, err
	}
	if m.latency, err = register(r, m.latency); err != nil {
		return nil, err
	}
	return m, nil
}

// register returns c, or what r has already by its name.
func register[C prometheus.Collector](r prometheus.Registerer, c C) (C, error) {
	err := r.Register(c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if old, ok := there.ExistingCollector.(C); ok {
			return old, nil
		}
	}
	if err != nil {
		return c, fmt.Errorf("register the metrics of taint eviction: %w", err)
	}
	return c, nil
}

func (m *metrics) deleted(late time.Duration) {
	m.deletions.Inc()
	m.latency.Observe(late.Seconds())
}
