// What a Doorman counts.

package doorman

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

type metrics struct {
	closed *prometheus.CounterVec // by reason
}

// newMetrics registers with r; nil works.
func newMetrics(server string, r prometheus.Registerer, l *strangers.Pending) (*metrics, error) {
	m := &metrics{closed: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hawser", Subsystem: server, Name: "connections_closed_total",
		Help: "Connections closed, by reason: to make room for another (crowded), without a request (no_request), without an authenticated request (unknown), after too many stream resets (resets).",
	}, []string{"reason"})}
	inside := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "hawser", Subsystem: server, Name: "connections_unauthenticated",
		Help: "Connections without an authenticated request.",
	}, func() float64 { return float64(l.Count()) })
	for _, reason := range []string{crowded, noRequest, unknown, resets} {
		m.closed.WithLabelValues(reason) // shown from the beginning
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.closed, inside} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of connections: %w", err)
		}
	}
	return m, nil
}
