package scheduler

// Tests of what has a pod tried again that found no node, and what does not.

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestWhatWakes: each kind of change that can make room does so within a second
// or the pod's back-off.
func TestWhatWakes(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node { return testNode("node-1", change) }
	for _, tc := range []struct {
		name   string
		node   *corev1.Node
		pod    func(*corev1.Pod)
		change func(t *testing.T, b *bench)
	}{
		{"a node comes", nil, nil, func(t *testing.T, b *bench) {
			if _, err := b.client.CoreV1().Nodes().Create(t.Context(), node(nil), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}},
		{"uncordon", node(func(n *corev1.Node) { n.Spec.Unschedulable = true }), nil, func(_ *testing.T, b *bench) { b.update(node(nil)) }},
		{"a taint goes", node(tainted("k", "v", corev1.TaintEffectNoExecute)), nil, func(_ *testing.T, b *bench) { b.update(node(nil)) }},
		{"a label comes", node(nil), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }, func(_ *testing.T, b *bench) { b.update(node(labeled("disk", "ssd"))) }},
		{"a pod goes", node(nil), asks("cpu", "1"), func(t *testing.T, b *bench) {
			if err := b.client.CoreV1().Pods("ns").Delete(t.Context(), "there", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}},
		{"a pod ends", node(nil), asks("cpu", "1"), func(t *testing.T, b *bench) {
			p := b.pod("there")
			p.Status.Phase = corev1.PodSucceeded
			if _, err := b.client.CoreV1().Pods("ns").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}},
		{"the pod tolerates more", node(tainted("k", "v", corev1.TaintEffectNoSchedule)), nil, func(t *testing.T, b *bench) {
			p := b.pod("p")
			tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})(p)
			if _, err := b.client.CoreV1().Pods("ns").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objs := []runtime.Object{testPod("there", func(p *corev1.Pod) { asks("cpu", "1500m")(p); p.Spec.NodeName = "node-1" })}
				if tc.node != nil {
					objs = append(objs, tc.node)
				}
				b := start(t, nil, objs...)
				defer b.stop()
				b.create(testPod("p", tc.pod))
				after(5 * time.Second)
				b.isOn("p", "")
				tc.change(t, b)
				after(time.Second)
				b.isOn("p", "node-1")
			})
		})
	}
}

// TestWhatDoesNotWake: what cannot help a pod does not have it looked at again.
func TestWhatDoesNotWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tainted1 := testNode("node-1", tainted("k", "v", corev1.TaintEffectNoSchedule))
		there := testPod("there", func(p *corev1.Pod) { p.Spec.NodeName = "node-1" })
		b := start(t, nil, tainted1, there, testNode("node-2", tainted("k", "v", corev1.TaintEffectNoSchedule)))
		defer b.stop()
		b.create(testPod("p", nil))
		after(5 * time.Second)
		told := len(b.events.about("p"))
		if err := b.client.CoreV1().Pods("ns").Delete(t.Context(), "there", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := b.client.CoreV1().Nodes().Delete(t.Context(), "node-2", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		bigger := tainted1.DeepCopy()
		bigger.Labels["new"] = ""
		bigger.Status.Allocatable = quantities("cpu", "64", "memory", "64Gi", "pods", "110")
		b.update(bigger)
		after(40 * time.Second)
		if got := b.events.about("p"); len(got) != told {
			t.Errorf("it was looked at again: %q", got)
		}
		free := bigger.DeepCopy()
		free.Spec.Taints = nil
		b.update(free)
		after(time.Second)
		b.isOn("p", "node-1")
	})
}
