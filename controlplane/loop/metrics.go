package loop

// Metrics of controllers, which are made more than once in a process.

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers *c with r, or sets *c to what r has in its place if a
// controller made before has registered that. A nil r is left alone. It is an
// error if r has another metric by the name, or one of another kind.
func Register[C prometheus.Collector](r prometheus.Registerer, c *C) error {
	if r == nil {
		return nil
	}
	err := r.Register(*c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if same, ok := there.ExistingCollector.(C); ok {
			*c = same
			return nil
		}
	}
	return err
}

// MustRegister is Register for names that nobody else has. It returns what c has
// become, and panics where Register fails.
func MustRegister[C prometheus.Collector](r prometheus.Registerer, c C) C {
	if err := Register(r, &c); err != nil {
		panic(err)
	}
	return c
}

// panics counts what Broken was told of.
var panics = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "hawser_controller_panics_total", Help: "Panics in controllers; each lost one reconciliation or one event.",
})

// Panics counts the panics in this process that cost a controller one look at an
// object, or one event. It is for one registry, or more, to have.
func Panics() prometheus.Collector { return panics }
