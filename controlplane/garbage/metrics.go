package garbage

// What prometheus sees.

import "github.com/prometheus/client_golang/prometheus"

// metrics counts failures to learn which kinds there are.
type metrics struct {
	syncErrors prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{syncErrors: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "garbagecollector_controller_resources_sync_error_total",
		Help: "Number of garbage collector resources sync errors",
	})}
	if r != nil {
		r.MustRegister(m.syncErrors)
	}
	return m
}
