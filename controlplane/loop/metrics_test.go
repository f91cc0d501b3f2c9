package loop

// Tests of registering metrics again.

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestRegister(t *testing.T) {
	counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "n", Help: "h"}) }
	reg := prometheus.NewRegistry()
	first := MustRegister(reg, counter())
	second := MustRegister(reg, counter())
	second.Inc()
	if got := testutil.ToFloat64(first); got != 1 {
		t.Errorf("the first counts %v of what the second counts", got)
	}
	alone := MustRegister(nil, counter())
	alone.Inc()
	if got := testutil.ToFloat64(first); got != 1 {
		t.Errorf("%v is counted by one without a registry", got)
	}
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "n", Help: "something else"})
	was := gauge
	if err := Register(reg, &gauge); err == nil || gauge != was {
		t.Errorf("another metric of the same name: %v", err)
	}
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "n", Help: "h"}, nil)
	if err := Register(reg, &vec); err == nil {
		t.Error("the same name and help in another kind")
	}
	var broken *PanicError
	if err := Protect(func() error { MustRegister(reg, was); return nil }); !errors.As(err, &broken) {
		t.Errorf("MustRegister: %v", err)
	}
}
