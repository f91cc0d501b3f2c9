package controlplane

// Metrics of the controllers as a whole.

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/controlplane/csr"
	"github.com/hawser-project/hawser/controlplane/loop"
)

type metrics struct {
	up       *prometheus.GaugeVec
	restarts *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "hawser_controller_running", Help: "1 while a controller runs, 0 while it waits to be restarted.",
		}, []string{"controller"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_controller_restarts_total", Help: "Restarts of a controller that ended by itself.",
		}, []string{"controller"}),
	}
	if r != nil {
		r.MustRegister(m.up, m.restarts, loop.Panics(), csr.Refused())
	}
	return m
}

func (m *metrics) running(name string, yes bool) {
	v := 0.0
	if yes {
		v = 1
	}
	m.up.WithLabelValues(name).Set(v)
}

func (m *metrics) restart(name string) { m.restarts.WithLabelValues(name).Inc() }

// A scope registers metrics until it ends, so that controllers which are made
// afresh can register theirs again.
type scope struct {
	r prometheus.Registerer // nil registers nothing

	mu  sync.Mutex
	all []prometheus.Collector // guarded by mu
}

// Register implements prometheus.Registerer.
func (s *scope) Register(c prometheus.Collector) error {
	if s.r == nil {
		return nil
	}
	if err := s.r.Register(c); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, c)
	return nil
}

// MustRegister implements prometheus.Registerer.
func (s *scope) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := s.Register(c); err != nil {
			panic(err)
		}
	}
}

// Unregister implements prometheus.Registerer.
func (s *scope) Unregister(c prometheus.Collector) bool { return s.r != nil && s.r.Unregister(c) }

// end takes back what was registered.
func (s *scope) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		s.r.Unregister(c)
	}
	s.all = nil
}

// missingKinds is the metric of what Missing returns, as of when it is asked for.
type missingKinds struct {
	desc *prometheus.Desc
	now  func() map[string][]string
}

func newMissingKinds(now func() map[string][]string) *missingKinds {
	return &missingKinds{now: now, desc: prometheus.NewDesc("hawser_controller_missing_kind",
		"1 for each kind that could not be listed yet and that a controller waits for.", []string{"controller", "kind"}, nil)}
}

// Describe implements prometheus.Collector.
func (m *missingKinds) Describe(ch chan<- *prometheus.Desc) { ch <- m.desc }

// Collect implements prometheus.Collector.
func (m *missingKinds) Collect(ch chan<- prometheus.Metric) {
	for controller, all := range m.now() {
		for _, kind := range all {
			ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, 1, controller, kind)
		}
	}
}
