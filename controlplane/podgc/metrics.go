package podgc

// What the controller counts, by the names that Kubernetes gives it.

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/controlplane/loop"
)

type metrics struct {
	pods, errs *prometheus.CounterVec // by namespace, reason
}

// newMetrics registers with r; nil works. Several controllers that are made in
// turn for the same registry share what it has.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counters := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "pod_gc_collector", Name: name, Help: help,
		}, []string{"namespace", "reason"})
	}
	m := &metrics{
		pods: counters("force_delete_pods_total", "Pods that the garbage collector set out to delete by force."),
		errs: counters("force_delete_pod_errors_total", "Pods that the garbage collector failed to delete."),
	}
	if err := errors.Join(loop.Register(r, &m.pods), loop.Register(r, &m.errs)); err != nil {
		return nil, fmt.Errorf("register the metrics of pod garbage collection: %w", err)
	}
	return m, nil
}

// removed counts an attempt and how it ended.
func (m *metrics) removed(namespace string, why reason, err error) {
	m.pods.WithLabelValues(namespace, string(why)).Inc()
	if err != nil {
		m.errs.WithLabelValues(namespace, string(why)).Inc()
	}
}
