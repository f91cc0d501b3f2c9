// What is counted of other servers.

package peers

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/hawser-project/hawser/server"
)

type metrics struct {
	asked, answered *prometheus.CounterVec // by code
	refused         *prometheus.CounterVec // by reason
	passing         prometheus.Gauge
}

// newMetrics registers with r; nil works.
func newMetrics(r prometheus.Registerer, p *Peers) *metrics {
	f := promauto.With(r)
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "hawser", Subsystem: "peer", Name: name, Help: help}
	}
	counter := func(name, help, label string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts(opts(name, help)), []string{label})
	}
	gauge := func(name, help string, value func() int) {
		f.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)), func() float64 { return float64(value()) })
	}
	gauge("connected", "Other servers with a session to this one.", func() int { return len(p.Connected()) })
	gauge("nodes", "Sessions of nodes at other servers.", p.attached)
	return &metrics{
		asked:    counter("dials_total", "Dials into nodes that this server sent to another one, by result.", "code"),
		answered: counter("requests_total", "Dials into nodes that other servers sent to this one, by result.", "code"),
		refused:  counter("refused_total", "Sessions of other servers that this one refused: too_many, or same_id if a server has the ID of this one.", "reason"),
		passing:  f.NewGauge(prometheus.GaugeOpts(opts("streams", "Open streams into nodes for other servers."))),
	}
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
