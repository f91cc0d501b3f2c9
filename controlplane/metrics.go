package controlplane

// Metrics of the controllers as a whole.

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	up       *prometheus.GaugeVec
	restarts *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "hawser_controller_running", Help: "Whether a controller is running (1) or waiting to be started again (0).",
		}, []string{"controller"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_controller_restarts_total", Help: "Times that a controller ended by itself and was started again.",
		}, []string{"controller"}),
	}
	if r != nil {
		r.MustRegister(m.up, m.restarts)
	}
	return m
}

func (m *metrics) running(name string, yes bool) {
	v := 0.0
	if yes {
		v = 1
	}
	m.up.WithLabelValues(name).Set(v)
}

func (m *metrics) restart(name string) { m.restarts.WithLabelValues(name).Inc() }
