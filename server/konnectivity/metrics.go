// Metrics of this front end: those that all have, and one of the packets that mean
// nothing. Labels come from closed lists.

package konnectivity

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/server/internal/fronts"
)

// Why a packet was ignored, as metrics call it.
const (
	unexpected    = "unexpected"         // of a type that clients do not send, or without its payload
	noConnection  = "unknown_connection" // it may have just ended
	noDial        = "unknown_dial"       // it may have just failed
	duplicateDial = "duplicate_dial"     // of the same random as one that is being made
)

type metrics struct {
	*fronts.Metrics
	ignored *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	shared, err := fronts.NewMetrics(r)
	if err != nil {
		return nil, err
	}
	m := &metrics{shared, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hawser_konnectivity_ignored_packets_total", Help: "Packets of clients that were ignored, by reason.",
	}, []string{"reason"})}
	if r == nil {
		return m, nil
	}
	return m, errors.Join(r.Register(m.ignored))
}
