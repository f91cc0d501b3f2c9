package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestOnlyNode: a pod for one node by name goes there or nowhere, and is told the same as
// if all nodes had been looked at.
func TestOnlyNode(t *testing.T) {
	named := func(name string) *podInfo {
		return newPodInfo(testPod("p-"+name, func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{fields1(corev1.NodeSelectorOpIn, name)}},
			}}
		}))
	}
	c := newCache()
	c.setNode(testNode("node-1", nil))
	c.setNode(testNode("node-2", tainted("k", "v", corev1.TaintEffectNoSchedule)))
	for _, tc := range []struct {
		node, want, why string
		needs           cause
	}{
		{"node-1", "node-1", "", 0},
		{"node-2", "", "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint {k: v}.", byTaints | byLabels},
		{"node-3", "", "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", byLabels},
	} {
		p := named(tc.node)
		if p.only != tc.node {
			t.Errorf("%s: only %q", tc.node, p.only)
		}
		if node, why, needs := c.place(p); node != tc.want || why != tc.why || needs != tc.needs {
			t.Errorf("%s: %q %q %v", tc.node, node, why, needs)
		}
	}
}
