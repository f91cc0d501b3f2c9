package kubeletapi

// Metrics: those of the agent, and of what runs on the node.

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/types"
)

// A Gatherer is where the agent's own metrics come from.
type Gatherer = prometheus.Gatherer

// metrics shows what the agent's own components count.
func (s *Server) metrics() http.Handler {
	g := s.cfg.Gatherer
	if g == nil {
		g = prometheus.NewRegistry()
	}
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{})
}

// resourceMetrics shows the use of processor and memory, in the names that
// Kubernetes' metrics server reads. The names do not tell a static pod from a pod of the
// API that has its name: one of them is shown, and the others in full.
func (s *Server) resourceMetrics(w http.ResponseWriter, r *http.Request) {
	list, err := s.usages(r.Context())
	failed := 0.0
	if err != nil {
		failed = 1
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(resourceSnapshot{list, s.nodeSample(), failed})
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// A nodeSample is what the machine as a whole uses.
type nodeSample struct{ cpuSeconds, memoryBytes float64 }

func (s *Server) nodeSample() nodeSample {
	var n nodeSample
	st := s.nodeStats()
	if st.CPU != nil {
		n.cpuSeconds = float64(*st.CPU.UsageCoreNanoSeconds) / 1e9
	}
	if st.Memory != nil {
		n.memoryBytes = float64(*st.Memory.WorkingSetBytes)
	}
	return n
}

// A resourceSnapshot is a prometheus.Collector of one moment.
type resourceSnapshot struct {
	containers []containerUsage
	node       nodeSample
	failed     float64
}

// Describe implements prometheus.Collector. It says nothing, which makes the
// collector an unchecked one.
func (resourceSnapshot) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s resourceSnapshot) Collect(ch chan<- prometheus.Metric) {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	send := func(name, doc string, kind prometheus.ValueType, value float64, at time.Time, labels, values []string) {
		m := prometheus.MustNewConstMetric(prometheus.NewDesc(name, doc, labels, nil), kind, value, values...)
		if !at.IsZero() {
			m = prometheus.NewMetricWithTimestamp(at, m)
		}
		ch <- m
	}
	send("node_cpu_usage_seconds_total", "Processor time used on the node.", counter, s.node.cpuSeconds, time.Time{}, nil, nil)
	send("node_memory_working_set_bytes", "Memory used on the node.", gauge, s.node.memoryBytes, time.Time{}, nil, nil)
	send("resource_scrape_error", "1 if the containers could not be asked.", gauge, s.failed, time.Time{}, nil, nil)

	podLabels := []string{"namespace", "pod"}
	labels := []string{"container", "namespace", "pod"}
	shown := make(map[types.NamespacedName]bool)
	for i := 0; i < len(s.containers); {
		pod, at := s.containers[i].Pod, s.containers[i].use.Time
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if shown[name] {
			i++
			continue
		}
		shown[name] = true
		var cpu, memory float64
		for ; i < len(s.containers) && s.containers[i].Pod == pod; i++ {
			c := s.containers[i]
			values := []string{c.Name, c.Pod.Namespace, c.Pod.Name}
			seconds, bytes := float64(c.use.CPUNanos)/1e9, float64(c.use.MemoryBytes)
			started := float64(c.StartedAt.UnixNano()) / 1e9
			send("container_cpu_usage_seconds_total", "Processor time used by the container.", counter, seconds, c.use.Time, labels, values)
			send("container_memory_working_set_bytes", "Memory used by the container.", gauge, bytes, c.use.Time, labels, values)
			send("container_start_time_seconds", "When the container started.", gauge, started, time.Time{}, labels, values)
			cpu, memory = cpu+seconds, memory+bytes
		}
		values := []string{pod.Namespace, pod.Name}
		send("pod_cpu_usage_seconds_total", "Processor time used by the pod.", counter, cpu, at, podLabels, values)
		send("pod_memory_working_set_bytes", "Memory used by the pod.", gauge, memory, at, podLabels, values)
	}
}
