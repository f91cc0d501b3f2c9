// Metrics of the CONNECT front end. Their labels come from closed lists.

package connect

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
)

type metrics struct {
	dials   *prometheus.CounterVec
	latency prometheus.Histogram
	open    prometheus.Gauge
	bytes   *prometheus.CounterVec
	shed    prometheus.Counter
	closed  *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		dials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_connect_dials_total", Help: "CONNECT requests by result.",
		}, []string{"result"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "hawser_connect_dial_duration_seconds", Help: "How long a CONNECT took to reach its target, or to fail.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8),
		}),
		shed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hawser_connect_shed_total", Help: "CONNECT requests refused for want of file descriptors.",
		}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_connect_closed_total", Help: "Connections closed before they had a usable request (no_request), or between two (idle).",
		}, []string{"reason"}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: "hawser_connect_tunnels", Help: "Open tunnels."}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_connect_bytes_total", Help: "Bytes moved by tunnels that have ended.",
		}, []string{"direction"}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.dials, m.latency, m.open, m.bytes, m.shed, m.closed} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *metrics) dialed(code tunnel.Code, took time.Duration) {
	result := "ok"
	if code != 0 {
		result = code.String()
	}
	m.dials.WithLabelValues(result).Inc()
	m.latency.Observe(took.Seconds())
}

func (m *metrics) moved(n tunnel.Counts) {
	m.bytes.WithLabelValues("in").Add(float64(n.AtoB))
	m.bytes.WithLabelValues("out").Add(float64(n.BtoA))
}
