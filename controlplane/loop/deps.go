package loop

// Deps: what every controller is made from.

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
)

// Deps are what a controller is made from beside what can be set of it: every one has a
// constructor of the form
//
//	func New(d loop.Deps, c Config) (*Controller, error)
//
// that starts nothing. The caller owns all that is in a Deps, and runs and stops Informers.
type Deps struct {
	Client    kubernetes.Interface // required
	Objects   metadata.Interface   // objects of any kind, of NewObjects; required by those who say so
	Custom    dynamic.Interface    // custom resources, for their scale; nil means that there are none
	Informers informers.SharedInformerFactory
	Events    record.EventRecorder  // nil means none
	Metrics   prometheus.Registerer // nil means none
	Log       *slog.Logger          // nil means discard
}
