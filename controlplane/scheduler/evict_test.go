package scheduler

// Tests of preemption as it runs, in fake time against a fake API server whose pods take
// their time to end.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// grace is how long pods of this API server take to end.
const grace = 30 * time.Second

// graceful makes client end pods on nodes after grace, and refuse to delete a pod by the
// UID of another.
func graceful(t *testing.T) func(*fake.Clientset) {
	return func(client *fake.Clientset) {
		client.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			del, _ := a.(clienttesting.DeleteActionImpl)
			obj, err := client.Tracker().Get(a.GetResource(), del.Namespace, del.Name)
			if err != nil {
				return true, nil, err
			}
			pod, _ := obj.(*corev1.Pod)
			if p := del.DeleteOptions.Preconditions; p != nil && p.UID != nil && *p.UID != pod.UID {
				return true, nil, apierrors.NewConflict(corev1.Resource("pods"), del.Name, errors.New("another UID"))
			}
			if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil {
				return false, nil, nil
			}
			pod = pod.DeepCopy()
			pod.DeletionTimestamp = ptr.To(metav1.NewTime(time.Now().Add(grace)))
			time.AfterFunc(grace, func() {
				if err := client.Tracker().Delete(a.GetResource(), del.Namespace, del.Name); err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
			})
			return true, nil, client.Tracker().Update(a.GetResource(), pod, pod.Namespace)
		})
	}
}

// isNominatedTo checks the node that a pod's status names.
func (b *bench) isNominatedTo(name, node string) {
	b.t.Helper()
	if got := b.pod(name).Status.NominatedNodeName; got != node {
		b.t.Errorf("pod %s is nominated to %q, want %q; events: %q", name, got, node, b.events.about(name))
	}
}

// deletions are the pods that somebody asked to delete.
func (b *bench) deletions() (out []string) {
	for _, a := range b.client.Actions() {
		if del, ok := a.(clienttesting.DeleteActionImpl); ok && a.GetResource().Resource == "pods" {
			out = append(out, del.Name)
		}
	}
	return out
}

// counts looks at how many searches there were at least, how many of them have found pods to
// remove, and how many pods those were.
func (b *bench) counts(attempts float64, found uint64, victims float64) {
	b.t.Helper()
	all, err := b.metrics.Gather()
	if err != nil || len(all) != 2 {
		b.t.Fatalf("%d families, %v", len(all), err)
	}
	if is := all[0].Metric[0].Counter.GetValue(); all[0].GetName() != "scheduler_preemption_attempts_total" || is < attempts {
		b.t.Errorf("%s %v, want %v or more", all[0].GetName(), is, attempts)
	}
	h := all[1].Metric[0].Histogram
	if all[1].GetName() != "scheduler_preemption_victims" || h.GetSampleCount() != found || h.GetSampleSum() != victims {
		b.t.Errorf("%s %v in %v, want %v in %v", all[1].GetName(), h.GetSampleSum(), h.GetSampleCount(), victims, found)
	}
}

// TestPreempts follows a pod that takes the place of another: what is said to both, that
// the place is kept meanwhile, and that it waits.
func TestPreempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, graceful(t), testNode("node-1", nil), testNode("node-2", tainted("k", "v", corev1.TaintEffectNoSchedule)),
			testPod("low", both(on("node-1"), asks("cpu", "2"))))
		defer b.stop()
		b.create(testPod("p", both(asks("cpu", "2"), ranked(10))))
		after(time.Second)
		b.isNominatedTo("p", "node-1")
		low := b.pod("low")
		c := low.Status.Conditions
		if low.DeletionTimestamp == nil || len(c) != 1 || c[0].Type != corev1.DisruptionTarget || c[0].Status != corev1.ConditionTrue ||
			c[0].Reason != "PreemptionByScheduler" || c[0].Message != "default-scheduler: preempting to accommodate a higher priority pod" {
			t.Errorf("the victim: deletion %v, conditions %+v", low.DeletionTimestamp, c)
		}
		if got, want := b.events.about("low"), []string{"Normal Preempted: Preempted by pod uid-p on node node-1"}; !slices.Equal(got, want) {
			t.Errorf("events of the victim %q, want %q", got, want)
		}
		const why = "Warning FailedScheduling: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {k: v}."
		if got := b.events.about("p"); !slices.Equal(got, []string{why}) {
			t.Errorf("events %q, want %q", got, why)
		}
		b.create(testPod("never", both(asks("cpu", "1"), ranked(20), func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) })),
			testPod("equal", both(asks("cpu", "1"), ranked(10))), testPod("lower", asks("cpu", "1")),
			testPod("gated", both(asks("cpu", "1"), ranked(30), func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}} })))
		after(2 * time.Second)
		if got := b.events.about("never"); len(got) != 1 || !strings.HasSuffix(got[0], "preemption: not eligible due to preemptionPolicy=Never.") {
			t.Errorf("events %q", got)
		}
		// A look at p while the victim ends removes nobody else.
		b.update(testNode("node-1", labeled("disk", "ssd")))
		grown := testNode("node-1", func(n *corev1.Node) { n.Status.Allocatable = quantities("cpu", "2", "memory", "5Gi", "pods", "10") })
		b.update(grown)
		after(5 * time.Second)
		if got := b.events.about("p"); !strings.HasSuffix(got[len(got)-1], "preemption: "+waits) {
			t.Errorf("events %q", got)
		}
		b.isNominatedTo("p", "node-1")
		if got := b.deletions(); !slices.Equal(got, []string{"low"}) {
			t.Errorf("deleted %q", got)
		}
		if err := b.client.CoreV1().Pods("ns").Delete(t.Context(), "never", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(grace + 11*time.Second)
		b.isOn("p", "node-1")
		for _, name := range []string{"equal", "lower", "gated"} {
			b.isOn(name, "")
			b.isNominatedTo(name, "")
		}
		b.counts(5, 1, 1)
	})
}

// TestOutranked: a pod that was promised a node loses it to one that is more important, and
// to the node's end.
func TestOutranked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, graceful(t), testNode("node-1", nil), testPod("low", both(on("node-1"), asks("cpu", "2"))))
		defer b.stop()
		b.create(testPod("middle", both(asks("cpu", "2"), ranked(10))))
		after(5 * time.Second)
		b.isNominatedTo("middle", "node-1")
		b.create(testPod("high", both(asks("cpu", "2"), ranked(20))))
		after(5 * time.Second)
		b.isNominatedTo("high", "node-1")
		b.isNominatedTo("middle", "")
		if got := b.deletions(); !slices.Equal(got, []string{"low"}) {
			t.Errorf("deleted %q", got)
		}
		if err := b.client.CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(11 * time.Second)
		b.isNominatedTo("high", "")
		if _, err := b.client.CoreV1().Nodes().Create(t.Context(), testNode("node-3", nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		after(11 * time.Second)
		b.isOn("high", "node-3")
		b.isOn("middle", "")
	})
}

// TestVictimStays: a victim that cannot be removed is tried again.
func TestVictimStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left atomic.Int32
		left.Store(2)
		b := start(t, func(c *fake.Clientset) {
			graceful(t)(c)
			c.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				if left.Add(-1) >= 0 {
					return true, nil, apierrors.NewInternalError(errors.New("no"))
				}
				return false, nil, nil
			})
		}, testNode("node-1", nil), testPod("low", both(on("node-1"), asks("cpu", "2"))))
		defer b.stop()
		b.create(testPod("p", both(asks("cpu", "2"), ranked(10))))
		after(30*time.Second + grace)
		b.isOn("p", "node-1")
		if got := b.events.about("low"); len(got) != 1 {
			t.Errorf("events of the victim %q", got)
		}
	})
}

// TestHopelessFlood: while a namespace fills up with pods that fit nowhere and are more
// important than all others, the pods of another are placed at once, and those that need
// somebody's place get it.
func TestHopelessFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, graceful(t), testNode("node-1", nil), testNode("node-2", nil),
			testPod("low", both(on("node-1"), asks("cpu", "2"))),
			testPod("firm-1", both(on("node-1"), asks("memory", "1Gi"), ranked(2000))),
			testPod("firm-2", both(on("node-2"), asks("memory", "1Gi", "cpu", "1"), ranked(2000))))
		defer b.stop()
		flood := func(round int) {
			for i := range 150 {
				b.create(testPod(fmt.Sprint("f", round, "-", i), both(inNamespace("flood"), asks("memory", "4Gi"), ranked(1000))))
				if i%50 == 0 {
					synctest.Wait() // the fake watch has room for 100
				}
			}
		}
		for round := range 3 {
			flood(round)
			name := fmt.Sprint("fits", round)
			b.create(testPod(name, asks("cpu", "100m")))
			after(time.Second)
			b.isOn(name, "node-2")
		}
		b.create(testPod("p", both(asks("cpu", "2"), ranked(10))))
		after(time.Second)
		b.isNominatedTo("p", "node-1")
		if got := b.deletions(); !slices.Equal(got, []string{"low"}) {
			t.Errorf("deleted %q", got)
		}
	})
}
