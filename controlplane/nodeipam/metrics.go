package nodeipam

// What the controller counts, by the names that Kubernetes gives it.

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// metrics have the label clusterCIDR, of which there are two values at most; but
// refused, which is ours.
type metrics struct {
	allocations, releases *prometheus.CounterVec
	most, usage           *prometheus.GaugeVec
	tries                 *prometheus.HistogramVec
	refused               *prometheus.CounterVec // by reason, of which there are two
}

// newMetrics registers with r; nil works. Several controllers that are made in
// turn for the same registry share what it has.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	labels := []string{"clusterCIDR"}
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Subsystem: "node_ipam_controller", Name: name, Help: help}
	}
	m := &metrics{
		allocations: prometheus.NewCounterVec(prometheus.CounterOpts(opts("cidrset_cidrs_allocations_total", "Blocks that became used.")), labels),
		releases:    prometheus.NewCounterVec(prometheus.CounterOpts(opts("cidrset_cidrs_releases_total", "Blocks that became free.")), labels),
		most:        prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("cirdset_max_cidrs", "Blocks that there are.")), labels),
		usage:       prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("cidrset_usage_cidrs", "Share of the blocks that is used, from 0 to 1.")), labels),
		tries: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "node_ipam_controller", Name: "cidrset_allocation_tries_per_request",
			Help:    "Used blocks that were come across in looking for a free one.",
			Buckets: prometheus.ExponentialBuckets(1, 5, 5),
		}, labels),
	}
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hawser", Subsystem: "node_ipam", Name: "ranges_refused_total", Help: "Nodes with an address range outside the cluster's or shared with another node, by reason.",
	}, []string{"reason"})
	err := errors.Join(
		loop.Register(r, &m.refused),
		loop.Register(r, &m.allocations), loop.Register(r, &m.releases), loop.Register(r, &m.most), loop.Register(r, &m.usage), loop.Register(r, &m.tries),
	)
	if err != nil {
		return nil, fmt.Errorf("register the metrics of node address ranges: %w", err)
	}
	return m, nil
}

// size notes a pool at its beginning.
func (m *metrics) size(p *pool) {
	m.most.WithLabelValues(p.all.String()).Set(float64(len(p.users)))
	m.used(p)
}

func (m *metrics) used(p *pool) {
	m.usage.WithLabelValues(p.all.String()).Set(float64(p.taken) / float64(len(p.users)))
}

func (m *metrics) took(p *pool, n int) {
	m.allocations.WithLabelValues(p.all.String()).Add(float64(n))
	m.used(p)
}

func (m *metrics) freed(p *pool, n int) {
	m.releases.WithLabelValues(p.all.String()).Add(float64(n))
	m.used(p)
}

func (m *metrics) tried(p *pool, n int) {
	m.tries.WithLabelValues(p.all.String()).Observe(float64(n))
}
