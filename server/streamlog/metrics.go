// Metrics of the tunnel's audit log.

package streamlog

import "github.com/prometheus/client_golang/prometheus"

type metrics struct{ dropped prometheus.Counter }

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{prometheus.NewCounter(prometheus.CounterOpts{
		Name: "hawser_tunnel_audit_dropped_total", Help: "Streams missing from the tunnel's audit log because it was too slow or could not be written.",
	})}
	if r == nil {
		return m, nil
	}
	return m, r.Register(m.dropped)
}
