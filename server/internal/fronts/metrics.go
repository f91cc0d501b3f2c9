// Package fronts is what the hub's front ends for others have in common: their metrics.
//
// Each front end has metrics of its own, told apart by a label that its registerer adds.
// Labels come from closed lists.
//
// What this package is not: it knows no protocol, and serves nothing.
package fronts

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/hawser-project/hawser/tunnel"
)

// Why a connection without a request was closed, as Metrics.Closed calls it.
const (
	NoRequest = "no_request" // it never had one: no handshake, a broken or an oversized header, silence
	Idle      = "idle"       // it had no further one
)

// Metrics are those of one front end.
type Metrics struct {
	Dials  *prometheus.CounterVec // by result
	Shed   prometheus.Counter
	Closed *prometheus.CounterVec // by reason
	Open   prometheus.Gauge

	latency prometheus.Histogram
	bytes   *prometheus.CounterVec
}

// NewMetrics registers metrics with r; nil means that nobody looks at them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	f := promauto.With(r)
	return &Metrics{
		Dials: f.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_connect_dials_total", Help: "Dials requested by clients, by result.",
		}, []string{"result"}),
		latency: f.NewHistogram(prometheus.HistogramOpts{
			Name: "hawser_connect_dial_duration_seconds", Help: "Time until a dial reached its target or failed.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8),
		}),
		Shed: f.NewCounter(prometheus.CounterOpts{
			Name: "hawser_connect_requests_shed_total", Help: "Requests refused because file descriptors ran short.",
		}),
		Closed: f.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_connect_connections_closed_total", Help: "Connections closed without a valid request (no_request) or idle between two requests (idle).",
		}, []string{"reason"}),
		Open: f.NewGauge(prometheus.GaugeOpts{Name: "hawser_connect_tunnels", Help: "Open tunnels."}),
		bytes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "hawser_connect_bytes_total", Help: "Bytes carried by tunnels that have ended, by direction.",
		}, []string{"direction"}),
	}
}

// Dialed counts a dial that took so long; code is 0 if it reached its target.
func (m *Metrics) Dialed(code tunnel.Code, took time.Duration) {
	m.Dials.WithLabelValues(code.Name()).Inc()
	m.latency.Observe(took.Seconds())
}

// Moved counts the bytes of a tunnel from its client to its target, and back.
func (m *Metrics) Moved(in, out int64) {
	m.bytes.WithLabelValues("in").Add(float64(in))
	m.bytes.WithLabelValues("out").Add(float64(out))
}
