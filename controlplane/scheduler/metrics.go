package scheduler

// Metrics of preemption, by kube-scheduler's names.

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	attempts prometheus.Counter
	victims  prometheus.Histogram
}

// newMetrics registers with r; nil works.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		attempts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_preemption_attempts_total", Help: "Searches for pods of lower priority to remove for a pod that fits nowhere.",
		}),
		victims: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "scheduler_preemption_victims", Help: "Pods that were chosen to be removed for a pod, by search that has found some.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 7),
		}),
	}
	if r == nil {
		return m, nil
	}
	return m, errors.Join(r.Register(m.attempts), r.Register(m.victims))
}
