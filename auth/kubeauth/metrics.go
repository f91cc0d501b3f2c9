package kubeauth

// The metrics.

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics has one counter, whose label has a value for each line of the table of
// claims.
type metrics struct{ refused *prometheus.CounterVec }

// newMetrics registers with r; nil works.
func newMetrics(r prometheus.Registerer) (metrics, error) {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hawser", Subsystem: "node", Name: "claims_refused_total",
		Help: "Writes of nodes that were refused, by claim.",
	}, []string{"claim"})
	if r == nil {
		return metrics{c}, nil
	}
	err := r.Register(c)
	if known := (prometheus.AlreadyRegisteredError{}); errors.As(err, &known) {
		if had, ok := known.ExistingCollector.(*prometheus.CounterVec); ok {
			return metrics{had}, nil
		}
	}
	if err != nil {
		return metrics{}, fmt.Errorf("register the metric of refused claims: %w", err)
	}
	return metrics{c}, nil
}
