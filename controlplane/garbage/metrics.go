package garbage

// What prometheus sees.

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// metrics counts failures to learn which kinds there are.
type metrics struct {
	syncErrors prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{syncErrors: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "garbagecollector_controller_resources_sync_error_total",
		Help: "Number of garbage collector resources sync errors",
	})}
	m.syncErrors = loop.MustRegister(r, m.syncErrors)
	return m
}
