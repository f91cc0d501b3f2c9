// Metrics of the tunnel's audit log.

package streamlog

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ dropped prometheus.Counter }

func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{promauto.With(r).NewCounter(prometheus.CounterOpts{
		Name: "hawser_tunnel_audit_dropped_total", Help: "Streams missing from the tunnel's audit log because it was too slow or could not be written.",
	})}
}
