// What is counted of other servers.

package peers

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/server"
)

type metrics struct {
	asked, answered  *prometheus.CounterVec // by code
	passing          prometheus.Gauge
	connected, nodes prometheus.GaugeFunc
}

// newMetrics registers with r; nil works.
func newMetrics(r prometheus.Registerer, p *Peers) (*metrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "hawser", Subsystem: "peer", Name: name, Help: help}
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), []string{"code"})
	}
	gauge := func(name, help string, value func() int) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)), func() float64 { return float64(value()) })
	}
	m := &metrics{
		asked:     counter("dials_total", "Dials into nodes that this server sent to another one, by result."),
		answered:  counter("requests_total", "Dials into nodes that other servers sent to this one, by result."),
		passing:   prometheus.NewGauge(prometheus.GaugeOpts(opts("streams", "Open streams into nodes for other servers."))),
		connected: gauge("connected", "Other servers with a session to this one.", func() int { return len(p.Connected()) }),
		nodes:     gauge("nodes", "Sessions of nodes at other servers.", p.attached),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.asked, m.answered, m.passing, m.connected, m.nodes} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// attached is how many sessions other servers have.
func (p *Peers) attached() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, l := range p.links {
		for _, o := range l.nodes {
			if o.State != server.Detached {
				n++
			}
		}
	}
	return n
}
