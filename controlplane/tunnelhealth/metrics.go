package tunnelhealth

// Metrics of nodes by health, of probes, writes and events.

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/loop"
)

type metrics struct {
	probes  *prometheus.CounterVec // by result
	seconds prometheus.Histogram
	writes  *prometheus.CounterVec // by result
	dropped prometheus.Counter
}

const prefix = "hawser_tunnel_health_"

// newMetrics registers with r; nil works.
func newMetrics(r prometheus.Registerer, nodes corelisters.NodeLister) *metrics {
	loop.MustRegister(r, &byHealth{nodes})
	results := func(name, help string) *prometheus.CounterVec {
		return loop.MustRegister(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{"result"}))
	}
	return &metrics{
		probes: results("probes_total", "Health probes of kubelets through the tunnel, by result."),
		seconds: loop.MustRegister(r, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "probe_duration_seconds", Help: "Time until a kubelet answered a health probe.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2.5, 9),
		})),
		writes: results("writes_total", "Writes of nodes' conditions, by result."),
		dropped: loop.MustRegister(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "events_dropped_total", Help: "Events about sessions that were dropped because there were too many.",
		})),
	}
}

// byHealth counts the nodes by each condition when it is asked.
type byHealth struct{ nodes corelisters.NodeLister }

// healthConditions are counted, with their label.
var healthConditions = map[corev1.NodeConditionType]string{
	corev1.NodeReady: "Ready", evidence.TunnelConnected: "TunnelConnected", evidence.DataPathReady: "DataPathReady",
}

// healthStatuses are those of a condition, with their label, which is that of kube-state-metrics.
var healthStatuses = map[corev1.ConditionStatus]string{
	corev1.ConditionTrue: "true", corev1.ConditionFalse: "false", corev1.ConditionUnknown: "unknown",
}

var nodesDesc = prometheus.NewDesc(prefix+"nodes", "Nodes by the status of a condition; those that never had a tunnel have Ready alone.", []string{"condition", "status"}, nil)

// Describe implements prometheus.Collector.
func (*byHealth) Describe(out chan<- *prometheus.Desc) { out <- nodesDesc }

// Collect implements prometheus.Collector.
func (b *byHealth) Collect(out chan<- prometheus.Metric) {
	nodes, err := b.nodes.List(labels.Everything())
	if err != nil {
		out <- prometheus.NewInvalidMetric(nodesDesc, err)
		return
	}
	counts := map[corev1.NodeConditionType]map[corev1.ConditionStatus]int{}
	for c := range healthConditions {
		counts[c] = map[corev1.ConditionStatus]int{}
	}
	for _, n := range nodes {
		for i := range n.Status.Conditions {
			if c := &n.Status.Conditions[i]; counts[c.Type] != nil {
				counts[c.Type][c.Status]++
			}
		}
	}
	for c, condition := range healthConditions {
		for s, status := range healthStatuses {
			out <- prometheus.MustNewConstMetric(nodesDesc, prometheus.GaugeValue, float64(counts[c][s]), condition, status)
		}
	}
}

func (m *metrics) probed(err error, d time.Duration) {
	m.probes.WithLabelValues(outcome(err)).Inc()
	if err == nil {
		m.seconds.Observe(d.Seconds())
	}
}

func (m *metrics) wrote(err error) { m.writes.WithLabelValues(outcome(err)).Inc() }

func outcome(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}
