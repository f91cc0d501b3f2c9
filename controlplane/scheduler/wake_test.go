package scheduler

// Tests of what has a pod tried again that found no node, and what does not.

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
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

// TestSpreadWakes: a pod that its topology spread keeps from its node is looked at once the node
// of the emptier domain is gone.
func TestSpreadWakes(t *testing.T) {
	const zone = "topology.kubernetes.io/zone"
	in := func(name, value string, edit func(*corev1.Node)) *corev1.Node {
		return testNode(name, func(n *corev1.Node) { labeled(zone, value)(n); edit(n) })
	}
	synctest.Test(t, func(t *testing.T) {
		full := func(n *corev1.Node) { n.Status.Allocatable = quantities("cpu", "1m", "memory", "4Gi", "pods", "10") }
		there := testPod("there", both(labelled("app=a"), func(p *corev1.Pod) { p.Spec.NodeName = "a1" }))
		b := start(t, nil, in("a1", "a", func(*corev1.Node) {}), in("b1", "b", full), there)
		defer b.stop()
		b.create(testPod("p", both(labelled("app=a"), asks("cpu", "1"), evenly(zone, true))))
		after(5 * time.Second)
		b.isOn("p", "")
		if err := b.client.CoreV1().Nodes().Delete(t.Context(), "b1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		b.isOn("p", "a1")
	})
}

// TestRefusedWakes: the room that a refused binding frees has parked pods looked at again.
func TestRefusedWakes(t *testing.T) {
	for name, refusal := range map[string]error{
		"gone":           apierrors.NewNotFound(corev1.Resource("pods"), "first"),
		"bound by other": apierrors.NewConflict(corev1.Resource("pods"), "first", errors.New("already assigned")),
		"other":          apierrors.NewForbidden(corev1.Resource("pods"), "first", errors.New("no")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refusal })
				s := &Scheduler{client: client, log: slog.New(slog.DiscardHandler)}
				r := &run{Scheduler: s, cache: newCache(), queue: newQueue(Config{MinBackoff: time.Second, MaxBackoff: time.Second, Recheck: time.Minute})}
				r.cache.setNode(testNode("node-1", nil))
				look := func(name string) (binding, cause) {
					p := newPodInfo(testPod(name, asks("cpu", "2"))) // all of the node
					r.queue.add(p.name(), 0)
					_, turn := takes(r.queue, 0)
					node, _, needs := r.cache.place(p)
					return binding{pod: p, node: node, turn: turn}, needs
				}
				first, _ := look("first")
				second, needs := look("second")
				if first.node != "node-1" || second.node != "" {
					t.Fatalf("they go to %q and %q", first.node, second.node)
				}
				r.queue.failed(second.turn, needs)
				after(time.Millisecond) // so that the second comes back first, if it does
				r.bind(t.Context(), first)
				if got, _ := takes(r.queue, time.Second); got != "second" {
					t.Errorf("took %q", got)
				}
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
