// What a Relay counts.

package relay

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

type metrics struct {
	failed prometheus.Counter
}

// newMetrics registers with to; nil works.
func newMetrics(to prometheus.Registerer, p *strangers.Pending) *metrics {
	f := promauto.With(to)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "hawser", Subsystem: "relay", Name: "connections",
		Help: "Connections to the API server through the port.",
	}, func() float64 { return float64(p.Count()) })
	f.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "hawser", Subsystem: "relay", Name: "connections_displaced_total",
		Help: "Connections to the API server through the port that were closed to make room for another one.",
	}, func() float64 { return float64(p.Lost()) })
	return &metrics{f.NewCounter(prometheus.CounterOpts{
		Namespace: "hawser", Subsystem: "relay", Name: "dials_failed_total",
		Help: "Connections that were closed because the API server could not be reached.",
	})}
}
