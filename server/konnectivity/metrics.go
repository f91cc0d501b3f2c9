// The metrics: those of all front ends, and one of ignored packets. Label values are
// constants.

package konnectivity

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/hawser-project/hawser/server/internal/fronts"
)

// Why a packet was ignored, as metrics call it.
const (
	unexpected    = "unexpected"         // its type is not one that clients send, or its payload is missing
	noConnection  = "unknown_connection" // the connection may have just ended
	noDial        = "unknown_dial"       // the dial may have just failed
	duplicateDial = "duplicate_dial"     // a dial with the same random number is under way
)

type metrics struct {
	*fronts.Metrics
	ignored *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	return &metrics{fronts.NewMetrics(r), promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "hawser_konnectivity_ignored_packets_total", Help: "Packets of clients that were ignored, by reason.",
	}, []string{"reason"})}
}
