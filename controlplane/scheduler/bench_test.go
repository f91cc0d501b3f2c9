package scheduler

// Benchmarks at the size of a large cluster: 2,000 nodes and 20,000 pods.

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	manyNodes = 2000
	manyPods  = 20_000
)

// crowd is a cache with many nodes in four zones, a tenth of them tainted.
func crowd() *cache {
	c := newCache()
	for i := range manyNodes {
		c.setNode(testNode(fmt.Sprint("node-", i), func(n *corev1.Node) {
			n.Labels["topology.kubernetes.io/zone"] = fmt.Sprint("zone-", i%4)
			n.Status.Allocatable = quantities("cpu", "8", "memory", "16Gi", "pods", "110")
			if i%10 == 0 {
				tainted("dedicated", "x", corev1.TaintEffectNoSchedule)(n)
			}
		}))
	}
	return c
}

// BenchmarkPlace decides about pod after pod, 20,000 of them on an empty cluster.
func BenchmarkPlace(b *testing.B) {
	for name, change := range map[string]func(*corev1.Pod){
		"plain":    asks("cpu", "100m", "memory", "128Mi"),
		"selector": func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"topology.kubernetes.io/zone": "zone-1"} },
		"affinity": required("topology.kubernetes.io/zone", corev1.NodeSelectorOpIn, "zone-1", "zone-2"),
		"spread":   both(labelled("app=a"), evenly("topology.kubernetes.io/zone", true)),
		"apart":    both(labelled("app=a"), wishing(-1, meaning("a", corev1.LabelHostname))),
	} {
		b.Run(name, func(b *testing.B) {
			var c *cache
			placed := manyPods
			for b.Loop() {
				if placed == manyPods {
					b.StopTimer()
					c, placed = crowd(), 0
					b.StartTimer()
				}
				p := newPodInfo(testPod("p", change))
				p.pod.UID = types.UID(fmt.Sprint(placed))
				if node, why, _ := c.place(p); node == "" {
					b.Fatal(why)
				}
				placed++
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
		})
	}
}

// BenchmarkNoPlace decides about a pod that fits on none of 2,000 nodes.
func BenchmarkNoPlace(b *testing.B) {
	for name, change := range map[string]func(*corev1.Pod){
		"too large": asks("cpu", "9"),
		"elsewhere": func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} },
	} {
		b.Run(name, func(b *testing.B) {
			c := crowd()
			p := newPodInfo(testPod("p", change))
			for b.Loop() {
				if node, _, _ := c.place(p); node != "" {
					b.Fatal(node)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
		})
	}
}

// BenchmarkWake has something happen while 20,000 pods wait that it cannot help.
func BenchmarkWake(b *testing.B) {
	q := newQueue(Config{MinBackoff: DefaultMinBackoff, MaxBackoff: DefaultMaxBackoff, Recheck: DefaultRecheck})
	for i := range manyPods {
		name := types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("p", i)}
		q.add(name, 0)
		q.take(b.Context())
		q.failed(name, q.changes, byRoom)
	}
	for b.Loop() {
		q.changed(byLabels)
	}
}
