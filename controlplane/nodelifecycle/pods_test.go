package nodelifecycle

// Tests of what becomes of the pods of a quiet node, and of labels.

import (
	"errors"
	"fmt"
	"maps"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

var podsGVR = corev1.SchemeGroupVersion.WithResource("pods")

// pod makes a pod; an empty ready is no Ready condition.
func (w *world) pod(name, node string, ready corev1.ConditionStatus) {
	w.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	if ready != "" {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: ready})
	}
	if err := w.store.Create(podsGVR, p, "ns"); err != nil {
		w.t.Fatal(err)
	}
}

// readyPods returns the names of pods whose Ready condition is True.
func (w *world) readyPods() []string {
	w.t.Helper()
	obj, err := w.store.List(podsGVR, corev1.SchemeGroupVersion.WithKind("Pod"), "ns")
	if err != nil {
		w.t.Fatal(err)
	}
	list, _ := obj.(*corev1.PodList)
	var out []string
	for i := range list.Items {
		for _, c := range list.Items[i].Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				out = append(out, list.Items[i].Name)
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "quiet", "other", "third")
		w.pod("a", "quiet", corev1.ConditionTrue)
		w.pod("b", "quiet", corev1.ConditionFalse)
		w.pod("c", "quiet", "")
		w.pod("d", "other", corev1.ConditionTrue)
		w.pod("e", "", "")
		w.silence("quiet")
		w.start()
		w.until(40*second - time.Millisecond)
		if got := w.readyPods(); !slices.Equal(got, []string{"a", "d"}) {
			t.Errorf("ready before: %q", got)
		}
		w.until(41 * second)
		if got := w.readyPods(); !slices.Equal(got, []string{"d"}) {
			t.Errorf("ready after: %q", got)
		}
		events := w.told(nodeNotReady)
		if !slices.Equal(events, []string{
			"40s ns/a Warning NodeNotReady: Node is not ready",
			"40s quiet Normal NodeNotReady: Node quiet status is now: NodeNotReady",
		}) {
			t.Errorf("events %q", events)
		}
		w.pod("f", "quiet", corev1.ConditionTrue) // arrives on a node that is quiet
		w.pod("g", "other", corev1.ConditionTrue)
		w.until(42 * second)
		if got := w.readyPods(); !slices.Equal(got, []string{"d", "g"}) {
			t.Errorf("ready after more came: %q", got)
		}
		w.heal("quiet")
		w.until(50 * second)
		w.pod("h", "quiet", corev1.ConditionTrue)
		w.until(60 * second)
		if got := w.readyPods(); !slices.Equal(got, []string{"d", "g", "h"}) {
			t.Errorf("ready after the node came back: %q", got)
		}
	})
}

// TestPodsLater: pods that could not be marked are marked later, also by the next
// controller; unless the node is back by then.
func TestPodsLater(t *testing.T) {
	for _, how := range []string{"retry", "restart", "healed"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.add("z", "quiet", "other", "third")
				w.pod("a", "quiet", corev1.ConditionTrue)
				w.pod("b", "quiet", corev1.ConditionTrue)
				w.silence("quiet")
				w.fails = func(a clienttesting.Action) error {
					if a.Matches("update", "pods/status") {
						return errors.New("no answer")
					}
					return nil
				}
				w.start()
				w.until(62 * second)
				if got := w.readyPods(); len(got) != 2 {
					t.Errorf("ready: %q", got)
				}
				want := 0
				switch how {
				case "restart":
					w.halt()
					w.start()
				case "healed":
					w.heal("quiet")
					want = 2
				}
				w.until(68 * second)
				w.mu.Lock()
				w.fails = nil
				w.mu.Unlock()
				w.until(80 * second)
				if got := w.readyPods(); len(got) != want {
					t.Errorf("ready in the end: %q", got)
				}
				if got := w.told(nodeNotReady); len(got) != 3-want {
					t.Errorf("events %q", got)
				}
			})
		})
	}
}

// TestPodElsewhere: a pod that was made again on another node is that node's.
func TestPodElsewhere(t *testing.T) {
	fl := newFleet(t)
	if err := fl.run.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	fl.run.records.of("node-0000").unready.Store(true)
	for pod, writes := range map[string]int{"pod-00001": 0, "pod-00000": 1} {
		fl.writes = 0
		if _, err := fl.run.mark(t.Context(), podKey{"node-0000", "ns", pod}); err != nil {
			t.Fatal(err)
		}
		if fl.writes != writes {
			t.Errorf("%s: %d writes, want %d", pod, fl.writes, writes)
		}
	}
}

func TestOldNames(t *testing.T) {
	const linux, arm = "kubernetes.io/os=linux", "kubernetes.io/arch=arm64"
	for _, tc := range []struct{ labels, want string }{
		{"", ""},
		{linux, "beta.kubernetes.io/os=linux"},
		{linux + " " + arm, "beta.kubernetes.io/arch=arm64 beta.kubernetes.io/os=linux"},
		{linux + " beta.kubernetes.io/os=linux", ""},
		{linux + " beta.kubernetes.io/os=windows", "beta.kubernetes.io/os=linux"},
		{"beta.kubernetes.io/os=windows", ""},
		{"kubernetes.io/os=", "beta.kubernetes.io/os="},
	} {
		labels := map[string]string{}
		for l := range strings.FieldsSeq(tc.labels) {
			k, v, _ := strings.Cut(l, "=")
			labels[k] = v
		}
		var got []string
		for _, k := range slices.Sorted(maps.Keys(oldNames(labels))) {
			got = append(got, k+"="+oldNames(labels)[k])
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%q: got %q, want %q", tc.labels, got, tc.want)
		}
	}
}

func TestLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "n")
		w.start()
		n := w.node("n")
		if _, _, err := w.change("n", "", n.UID, func(n *corev1.Node) {
			n.Labels[corev1.LabelOSStable], n.Labels["beta.kubernetes.io/os"], n.Labels["mine"] = "linux", "plan9", "x"
		}); err != nil {
			t.Fatal(err)
		}
		w.until(second)
		if got := w.node("n").Labels; got["beta.kubernetes.io/os"] != "linux" || got["mine"] != "x" || len(got) != 4 {
			t.Errorf("labels %v", got)
		}
	})
}

// TestTaintsAndLabels: what a new node needs is one write.
func TestTaintsAndLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "n")
		w.start()
		w.writes()
		n := w.node("n")
		if _, _, err := w.change("n", "", n.UID, func(n *corev1.Node) {
			n.Labels[corev1.LabelOSStable] = "linux"
			n.Spec.Taints = []corev1.Taint{taint(corev1.TaintNodeNotReady, "NoSchedule")}
		}); err != nil {
			t.Fatal(err)
		}
		w.until(second)
		n = w.node("n")
		if len(n.Spec.Taints) > 0 || n.Labels["beta.kubernetes.io/os"] != "linux" {
			t.Errorf("taints %v, labels %v", n.Spec.Taints, n.Labels)
		}
		if got := w.writes(); got != 1 {
			t.Errorf("%d writes, want one", got)
		}
	})
}

// TestNodesFirst: when many nodes fall silent together, none of them waits for the
// pods of others.
func TestNodesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "other", "third")
		for i := range 3 * DefaultWorkers { // fewer than the hundred events that a watch of the store holds
			name := fmt.Sprintf("quiet-%d", i)
			w.add("z", name)
			w.pod("pod-"+name, name, corev1.ConditionTrue)
			w.silence(name)
		}
		var done []string
		w.client.PrependReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			goruntime.Gosched() // and let others come first
			if r := a.GetResource().Resource; a.GetSubresource() == "status" && (len(done) == 0 || done[len(done)-1] != r) {
				done = append(done, r)
			}
			return false, nil, nil
		})
		w.start()
		w.until(42 * second)
		if got := w.readyPods(); len(got) > 0 {
			t.Errorf("still ready: %q", got)
		}
		if want := []string{"nodes", "pods"}; !slices.Equal(done, want) {
			t.Errorf("written in turns: %q, want %q", done, want)
		}
		w.halt()
	})
}
