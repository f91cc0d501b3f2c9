// The metrics of a Balancer.

package balance

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	joined, refused, failed, aside prometheus.Counter
}

// newMetrics registers with to; nil works.
func newMetrics(to prometheus.Registerer, b *Balancer) *metrics {
	f := promauto.With(to)
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "hawser", Subsystem: "balancer", Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	f.NewGaugeFunc(prometheus.GaugeOpts(opts("connections", "Connections to Services that are open.")), func() float64 { return float64(b.pending.Count()) })
	f.NewCounterFunc(prometheus.CounterOpts(opts("connections_displaced_total", "Connections to Services that were closed to make room for another one.")), func() float64 { return float64(b.pending.Lost()) })
	f.NewGaugeFunc(prometheus.GaugeOpts(opts("fronts", "Addresses at which the server listens for Services.")), func() float64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return float64(len(b.fronts))
	})
	return &metrics{
		joined:  counter("connections_total", "Connections to Services that reached an endpoint."),
		refused: counter("connections_refused_total", "Connections to Services that came from outside their source ranges or exceeded twice the limit."),
		failed:  counter("connections_failed_total", "Connections to Services that reached no endpoint."),
		aside:   counter("targets_set_aside_total", "Endpoints of Services that could not be dialed and are tried last for 10 s."),
	}
}
