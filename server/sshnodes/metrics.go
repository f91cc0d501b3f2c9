// The metrics. A label has at most one value for each tunnel.Code.

package sshnodes

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/hawser-project/hawser/tunnel"
)

// metrics are those of a Fleet.
type metrics struct {
	opens       prometheus.Counter // Kubernetes' own names
	openFails   prometheus.Counter
	sessions    prometheus.Gauge
	ended       *prometheus.CounterVec // by code
	dials       *prometheus.CounterVec // by code
	dialSeconds prometheus.Histogram
	checks      *prometheus.CounterVec // by code
	streams     prometheus.Gauge
	rtt         prometheus.Histogram
}

// newMetrics registers with r; nil works. ssh_tunnel_open_count and
// ssh_tunnel_open_fail_count are the names by which Kubernetes counted attempts
// to connect to a node while it had this mode.
func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	const prefix = "hawser_ssh_"
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	byCode := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{"code"})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
	}
	seconds := func(name, help string, most ...float64) prometheus.Histogram {
		buckets := append([]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, most...)
		return f.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets})
	}
	return &metrics{
		opens:       counter("ssh_tunnel_open_count", "Attempts to connect to a node's sshd."),
		openFails:   counter("ssh_tunnel_open_fail_count", "Attempts to connect to a node's sshd that failed."),
		sessions:    gauge("sessions", "Nodes connected over SSH."),
		ended:       byCode("sessions_ended_total", "SSH connections that ended, by reason."),
		dials:       byCode("dials_total", "Dials through SSH, by result."),
		dialSeconds: seconds("dial_duration_seconds", "Time until a dial through SSH was answered.", 30),
		checks:      byCode("checks_total", "Test dials through SSH, by result."),
		streams:     gauge("streams", "Open streams over SSH."),
		rtt:         seconds("rtt_seconds", "Round-trip time of keepalives."),
	}
}

// opened counts an attempt to connect.
func (m *metrics) opened(err error) {
	m.opens.Inc()
	if err != nil {
		m.openFails.Inc()
	}
}

// lost counts the end of a session.
func (m *metrics) lost(err error) {
	m.sessions.Dec()
	m.ended.WithLabelValues(tunnel.CodeOf(err).Name()).Inc()
}

// dialed counts a dial that took d.
func (m *metrics) dialed(err error, d time.Duration) {
	m.dials.WithLabelValues(tunnel.CodeOf(err).Name()).Inc()
	if err == nil {
		m.dialSeconds.Observe(d.Seconds())
	}
}
