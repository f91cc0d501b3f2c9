// What a Relay counts.

package relay

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

type metrics struct {
	failed prometheus.Counter
}

// newMetrics registers with to; nil works.
func newMetrics(to prometheus.Registerer, p *strangers.Pending) (*metrics, error) {
	m := &metrics{prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "hawser", Subsystem: "relay", Name: "dials_failed_total",
		Help: "Connections that were closed because the API server could not be reached.",
	})}
	if to == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.failed,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "hawser", Subsystem: "relay", Name: "connections",
			Help: "Connections to the API server through the port.",
		}, func() float64 { return float64(p.Count()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "hawser", Subsystem: "relay", Name: "connections_displaced_total",
			Help: "Connections to the API server through the port that were closed to make room for another one.",
		}, func() float64 { return float64(p.Lost()) }),
	} {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("relay: register metrics: %w", err)
		}
	}
	return m, nil
}
