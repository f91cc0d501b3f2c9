package scheduler

// Benchmarks at the size of a large cluster: 2,000 nodes and 20,000 pods.

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	policylisters "k8s.io/client-go/listers/policy/v1"
	clientcache "k8s.io/client-go/tools/cache"
)

const (
	manyNodes = 2000
	manyPods  = 20_000
)

// bigTopology is a cache with many nodes in four zones, a tenth of them tainted.
func bigTopology() *cache {
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
		"siblings": both(asks("cpu", "100m", "memory", "128Mi"), ownedBy("ReplicaSet", "1")),
		"apart":    both(labelled("app=a"), wishing(-1, meaning("a", corev1.LabelHostname))),
	} {
		b.Run(name, func(b *testing.B) {
			var c *cache
			placed := manyPods
			for b.Loop() {
				if placed == manyPods {
					b.StopTimer()
					c, placed = bigTopology(), 0
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
			c := bigTopology()
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

// BenchmarkPreempt searches for a node among 1,000 full ones, each with 30 pods of lower
// priority, for a pod whose place can be made and for one whose cannot.
func BenchmarkPreempt(b *testing.B) {
	for name, change := range map[string]func(*corev1.Pod){
		"plain":    asks("cpu", "1"),
		"hopeless": asks("cpu", "1", "memory", "15Gi"),
		"siblings": both(asks("cpu", "100m", "memory", "128Mi"), ownedBy("ReplicaSet", "1")),
		"apart":    both(asks("cpu", "1"), antiAffinityTerms(meaning("a", corev1.LabelHostname))),
		"spread":   both(asks("cpu", "1"), labelled("app=a"), evenly("topology.kubernetes.io/zone", true)),
	} {
		b.Run(name, func(b *testing.B) {
			c := newCache()
			for i := range 1000 {
				node := fmt.Sprint("node-", i)
				c.setNode(testNode(node, func(n *corev1.Node) {
					n.Labels["topology.kubernetes.io/zone"] = fmt.Sprint("zone-", i%4)
					n.Status.Allocatable = quantities("cpu", "3", "memory", "16Gi", "pods", "110")
				}))
				c.setPod(testPod(node+"-firm", both(on(node), asks("memory", "2Gi"), ranked(20))))
				for j := range 30 {
					c.setPod(testPod(fmt.Sprint(node, "-", j), both(on(node), asks("cpu", "100m"), ranked(int32(j%5)), labelled("app=a"))))
				}
			}
			p := newPodInfo(testPod("p", both(change, ranked(10))))
			budgets := newBudgets(policylisters.NewPodDisruptionBudgetLister(clientcache.NewIndexer(clientcache.MetaNamespaceKeyFunc,
				clientcache.Indexers{clientcache.NamespaceIndex: clientcache.MetaNamespaceIndexFunc})))
			for b.Loop() {
				if f := c.preempt(p, budgets); (f.node == "") != (name == "hopeless") {
					b.Fatal(f.why)
				}
				c.endNomination(keyOf(p.pod))
			}
		})
	}
}

// BenchmarkWake has something happen while 20,000 pods wait that it cannot help.
func BenchmarkWake(b *testing.B) {
	q := newQueue(Config{MinBackoff: DefaultMinBackoff, MaxBackoff: DefaultMaxBackoff, Recheck: DefaultRecheck})
	for i := range manyPods {
		name := types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("p", i)}
		q.add(name, 0)
		t, _ := q.take(b.Context())
		q.failed(t, byRoom)
	}
	for b.Loop() {
		q.changed(byLabels)
	}
}
