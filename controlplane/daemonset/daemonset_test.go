package daemonset

// Tests of the controller in fake time.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a lab with a DaemonSet d and the controller, which said events.
type world struct {
	*apitest.Lab
	events *record.FakeRecorder
	ctl    *Controller
}

func node(name string, edits ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}
	for _, e := range edits {
		e(n)
	}
	return n
}

func taint(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	}
}

// set is a DaemonSet as the API server would have it, changed by edits.
func set(edits ...func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
	match := map[string]string{"app": "d"}
	ds := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "ns"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: match}, RevisionHistoryLimit: ptr.To[int32](10),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: match}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
			},
			UpdateStrategy: rolling("1", "0"),
		},
	}
	for _, e := range edits {
		e(ds)
	}
	return ds
}

func rolling(unavailable, surge string) appsv1.DaemonSetUpdateStrategy {
	return appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{
		MaxUnavailable: ptr.To(intstr.Parse(unavailable)), MaxSurge: ptr.To(intstr.Parse(surge)),
	}}
}

func run(t *testing.T, f func(w *world), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{Lab: apitest.NewLab(t, nil, objs...), events: record.NewFakeRecorder(100000)}
		w.ctl = apitest.Run(w.Lab, func(f informers.SharedInformerFactory) (*Controller, error) {
			return New(loop.Deps{Client: w.Client, Informers: f, Events: w.events}, Config{})
		})
		w.settle(0)
		f(w)
		w.Stop()
		if left := w.ctl.pods.Remembered(); len(left) != 0 {
			t.Errorf("still remembered: %v", left)
		}
	})
}

// settle lets d pass and what it sets off come to an end.
func (w *world) settle(d time.Duration) {
	<-time.After(d + 100*time.Millisecond)
	synctest.Wait()
}

func (w *world) set() *appsv1.DaemonSet {
	w.Helper()
	ds, err := w.Client.AppsV1().DaemonSets("ns").Get(w.Context(), "d", metav1.GetOptions{})
	w.Must(err)
	return ds
}

func (w *world) edit(f func(*appsv1.DaemonSet)) {
	w.Helper()
	ds := w.set()
	f(ds)
	_, err := w.Client.AppsV1().DaemonSets("ns").Update(w.Context(), ds, metav1.UpdateOptions{})
	w.Must(err)
	w.settle(0)
}

func (w *world) image(image string) {
	w.Helper()
	w.edit(func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Containers[0].Image = image })
}

func (w *world) pods() []*corev1.Pod { w.Helper(); return apitest.Pods(w, w.Client, "ns") }

// has wants these pods: NODE=IMAGE, with - in front if it is being deleted and * behind
// if it is ready.
func (w *world) has(want string) {
	w.Helper()
	var got []string
	for _, p := range w.pods() {
		s := nodeOf(p) + "=" + p.Spec.Containers[0].Image
		if p.DeletionTimestamp != nil {
			s = "-" + s
		}
		if children.Ready(p) {
			s += "*"
		}
		got = append(got, s)
	}
	slices.Sort(got)
	if s := strings.Join(got, " "); s != want {
		w.Errorf("at %v: %s; want %s", time.Since(w.Start), s, want)
	}
}

// phase has the pods of nodes be in a phase; those that run are ready and bound.
func (w *world) phase(phase corev1.PodPhase, nodes ...string) {
	w.Helper()
	for _, p := range w.pods() {
		if !slices.Contains(nodes, nodeOf(p)) || p.DeletionTimestamp != nil || p.Status.Phase == phase {
			continue
		}
		p.Spec.NodeName = nodeOf(p)
		p, err := w.Client.CoreV1().Pods("ns").Update(w.Context(), p, metav1.UpdateOptions{})
		w.Must(err)
		p.Status = corev1.PodStatus{Phase: phase}
		if phase == corev1.PodRunning {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		}
		_, err = w.Client.CoreV1().Pods("ns").UpdateStatus(w.Context(), p, metav1.UpdateOptions{})
		w.Must(err)
	}
	w.settle(0)
}

// gone has nodes end the pods that they have been told to.
func (w *world) gone() {
	w.Helper()
	for _, p := range w.pods() {
		if p.DeletionTimestamp != nil {
			w.Must(w.Client.CoreV1().Pods("ns").Delete(w.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		}
	}
	w.settle(0)
}

// delete deletes a pod that is on a node.
func (w *world) delete(node string, o metav1.DeleteOptions) {
	w.Helper()
	pods := w.pods()
	i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return nodeOf(p) == node })
	w.Must(w.Client.CoreV1().Pods("ns").Delete(w.Context(), pods[i].Name, o))
	w.settle(0)
}

func (w *world) status(want string) {
	w.Helper()
	s := w.set().Status
	got := fmt.Sprintf("%d/%d ready %d updated %d available %d unavailable %d misscheduled %d gen %d", s.CurrentNumberScheduled, s.DesiredNumberScheduled,
		s.NumberReady, s.UpdatedNumberScheduled, s.NumberAvailable, s.NumberUnavailable, s.NumberMisscheduled, s.ObservedGeneration)
	if got != want {
		w.Errorf("status %s, want %s", got, want)
	}
}

func (w *world) revisions(want string) {
	w.Helper()
	list, err := w.Client.AppsV1().ControllerRevisions("ns").List(w.Context(), metav1.ListOptions{})
	w.Must(err)
	var got []string
	for i := range list.Items {
		r := &list.Items[i]
		_, image, _ := strings.Cut(string(r.Data.Raw), `"image":"`)
		image, _, _ = strings.Cut(image, `"`)
		got = append(got, fmt.Sprintf("%d=%s", r.Revision, image))
	}
	slices.Sort(got)
	if s := strings.Join(got, " "); s != want {
		w.Errorf("revisions %s, want %s", s, want)
	}
}

// TestNodes: which nodes get a pod, and which may keep one.
func TestNodes(t *testing.T) {
	selector := func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"} }
	host := func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.HostNetwork = true }
	labelled := func(n *corev1.Node) { n.Labels["a"] = "b" }
	for name, tc := range map[string]struct {
		ds   *appsv1.DaemonSet
		node *corev1.Node
		want answer
	}{
		"plain":              {set(), node("n"), answer{true, true}},
		"selected":           {set(selector), node("n", labelled), answer{true, true}},
		"not selected":       {set(selector), node("n"), answer{}},
		"by name":            {set(func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.NodeName = "m" }), node("n"), answer{}},
		"by affinity":        {set(func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Affinity = only(nil, "m") }), node("n"), answer{}},
		"not ready":          {set(), node("n", taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)), answer{true, true}},
		"unreachable":        {set(), node("n", taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)), answer{true, true}},
		"starting":           {set(), node("n", taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule)), answer{false, true}},
		"cordoned":           {set(), node("n", taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)), answer{true, true}},
		"disk":               {set(), node("n", taint(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)), answer{true, true}},
		"memory":             {set(), node("n", taint(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)), answer{true, true}},
		"processes":          {set(), node("n", taint(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)), answer{true, true}},
		"no network":         {set(), node("n", taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)), answer{false, true}},
		"the host's network": {set(host), node("n", taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)), answer{true, true}},
		"rather not":         {set(), node("n", taint("x", corev1.TaintEffectPreferNoSchedule)), answer{true, true}},
		"tainted":            {set(), node("n", taint("x", corev1.TaintEffectNoSchedule)), answer{false, true}},
		"evicting":           {set(), node("n", taint("x", corev1.TaintEffectNoExecute)), answer{}},
		"both":               {set(), node("n", taint("x", corev1.TaintEffectNoExecute), taint("y", corev1.TaintEffectNoSchedule)), answer{}},
		"gone":               {set(), nil, answer{}},
	} {
		if got := fitOf(tc.ds).of(tc.node); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

// TestKeep: one pod a node, whatever comes and goes.
func TestKeep(t *testing.T) {
	run(t, func(w *world) {
		w.has("a=one b=one")
		w.status("2/2 ready 0 updated 2 available 0 unavailable 2 misscheduled 0 gen 1")
		p := w.pods()[0]
		if p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == "" || len(p.Spec.Tolerations) != 6 || !metav1.IsControlledBy(p, w.set()) || p.Spec.NodeName != "" {
			t.Errorf("a pod is %+v", p)
		}
		w.phase(corev1.PodRunning, "a", "b")
		w.status("2/2 ready 2 updated 2 available 2 unavailable 0 misscheduled 0 gen 1")
		nodes := w.Client.CoreV1().Nodes()
		_, err := nodes.Create(t.Context(), node("c"), metav1.CreateOptions{})
		w.Must(err)
		w.settle(0)
		w.has("a=one* b=one* c=one")
		_, err = nodes.Update(t.Context(), node("b", taint("x", corev1.TaintEffectNoSchedule)), metav1.UpdateOptions{})
		w.Must(err)
		w.settle(0)
		w.has("a=one* b=one* c=one")
		w.status("2/2 ready 1 updated 2 available 1 unavailable 1 misscheduled 1 gen 1")
		_, err = nodes.Update(t.Context(), node("b", taint("x", corev1.TaintEffectNoExecute)), metav1.UpdateOptions{})
		w.Must(err)
		w.Must(nodes.Delete(t.Context(), "c", metav1.DeleteOptions{}))
		w.settle(0)
		w.has("-b=one* a=one*") // that of c was on no node yet
		w.gone()
		w.status("1/1 ready 1 updated 1 available 1 unavailable 0 misscheduled 0 gen 1")
		w.Must(w.Client.CoreV1().Pods("ns").Delete(t.Context(), w.pods()[0].Name, metav1.DeleteOptions{}))
		w.settle(0)
		w.has("-a=one*") // never two on a node
		w.gone()
		w.has("a=one")
	}, node("a"), node("b"), set())
}

// TestFailed: a pod that fails is replaced, and one that fails again at once later.
func TestFailed(t *testing.T) {
	run(t, func(w *world) {
		for i, pause := range []time.Duration{0, 300 * time.Millisecond, 1300 * time.Millisecond} {
			w.phase(corev1.PodFailed, "a")
			if failed := w.pods()[0].Status.Phase == corev1.PodFailed; failed != (pause > 0) {
				t.Errorf("%d: failed still: %v", i, failed)
			}
			w.settle(pause + 500*time.Millisecond)
			if p := w.pods(); len(p) != 1 || p[0].Status.Phase == corev1.PodFailed {
				t.Errorf("%d: not replaced: %v", i, p)
			}
		}
		const want = "Warning FailedDaemonPod Found failed daemon pod ns/d-"
		got := apitest.Events(w.events)
		if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("events %q", got)
		}
	}, node("a"), set())
}

// TestSucceeded: a pod that ends well is replaced at once, however often.
func TestSucceeded(t *testing.T) {
	run(t, func(w *world) {
		for i := range 5 {
			before := w.pods()[0].UID
			w.phase(corev1.PodSucceeded, "a")
			if p := w.pods(); len(p) != 1 || p[0].UID == before || p[0].Status.Phase == corev1.PodSucceeded {
				t.Errorf("%d: not replaced: %v", i, p)
			}
		}
		w.phase(corev1.PodFailed, "a") // the first that fails is replaced at once, too
		w.has("a=one")
		if p := w.pods()[0]; p.Status.Phase == corev1.PodFailed {
			t.Errorf("not replaced: %v", p)
		}
		const want = "Normal SucceededDaemonPod Found succeeded daemon pod ns/d-"
		if got := apitest.Events(w.events); !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("events %q", got)
		}
	}, node("a"), set())
}

// TestNotDeleted: a pod that could not be deleted was not replaced, and is no reason to wait.
func TestNotDeleted(t *testing.T) {
	run(t, func(w *world) {
		var refused atomic.Int64
		w.Failing(func(verb, resource, _ string) error {
			if verb == "delete" && resource == "pods" && refused.Add(1) <= 5 {
				return errors.New("no answer")
			}
			return nil
		})
		w.phase(corev1.PodFailed, "a")
		w.settle(3 * time.Second)
		if p := w.pods(); refused.Load() < 6 || len(p) != 1 || p[0].Status.Phase == corev1.PodFailed {
			t.Errorf("after %d deletions: %v", refused.Load(), p)
		}
	}, node("a"), set())
}

// TestRolling: pods are replaced one after the other, back and forth.
func TestRolling(t *testing.T) {
	run(t, func(w *world) {
		w.phase(corev1.PodRunning, "a", "b", "c")
		w.image("two")
		w.has("-a=one* b=one* c=one*")
		w.gone()
		w.has("a=two b=one* c=one*")
		w.status("3/3 ready 2 updated 1 available 2 unavailable 1 misscheduled 0 gen 2")
		w.phase(corev1.PodRunning, "a")
		w.has("-b=one* a=two* c=one*")
		w.image("one") // undone: what is not updated yet need not be
		w.gone()
		w.has("a=two* b=one c=one*")
		w.phase(corev1.PodRunning, "b")
		w.gone()
		w.phase(corev1.PodRunning, "a")
		w.has("a=one* b=one* c=one*")
		w.status("3/3 ready 3 updated 3 available 3 unavailable 0 misscheduled 0 gen 3")
		w.revisions("2=two 3=one")
		w.edit(func(ds *appsv1.DaemonSet) { ds.Spec.RevisionHistoryLimit = ptr.To[int32](0) })
		w.revisions("3=one")
	}, node("a"), node("b"), node("c"), set())
}

// TestStrategies: several at a time, after a while, with a second pod, or by hand.
func TestStrategies(t *testing.T) {
	all := []runtime.Object{node("a"), node("b"), node("c"), node("e")}
	use := func(s appsv1.DaemonSetUpdateStrategy, seconds int32) []runtime.Object {
		return append(slices.Clone(all), set(func(ds *appsv1.DaemonSet) { ds.Spec.UpdateStrategy, ds.Spec.MinReadySeconds = s, seconds }))
	}
	t.Run("half", func(t *testing.T) {
		run(t, func(w *world) {
			w.phase(corev1.PodRunning, "a", "b", "c", "e")
			w.settle(11 * time.Second)
			w.image("two")
			w.gone()
			w.has("a=two b=two c=one* e=one*")
			w.phase(corev1.PodRunning, "a", "b")
			w.settle(8 * time.Second)
			w.has("a=two* b=two* c=one* e=one*")
			w.settle(3 * time.Second)
			w.has("-c=one* -e=one* a=two* b=two*")
		}, use(rolling("50%", "0"), 10)...)
	})
	t.Run("surge", func(t *testing.T) {
		run(t, func(w *world) {
			w.phase(corev1.PodRunning, "a", "b", "c", "e")
			w.image("two")
			w.has("a=one* a=two b=one* c=one* e=one*")
			w.phase(corev1.PodRunning, "a")
			w.has("-a=one* a=two* b=one* b=two c=one* e=one*")
		}, use(rolling("0", "1"), 0)...)
	})
	t.Run("surge, and a node is no longer wanted", func(t *testing.T) {
		run(t, func(w *world) {
			w.phase(corev1.PodRunning, "a", "b")
			w.delete("e", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
			nodes := w.Client.CoreV1().Nodes()
			_, err := nodes.Update(w.Context(), node("b", taint("x", corev1.TaintEffectNoSchedule)), metav1.UpdateOptions{})
			w.Must(err)
			w.settle(0)
			w.image("two")
			w.phase(corev1.PodRunning, "a")
			w.gone()
			w.has("a=two* b=one* c=two e=two") // b's is needed: two of three do not run
			w.phase(corev1.PodRunning, "c")
			w.has("a=two* b=one* c=two* e=two")
			w.phase(corev1.PodRunning, "e")
			w.has("-b=one* a=two* c=two* e=two*")
			w.gone()
			w.has("a=two* c=two* e=two*")
		}, use(rolling("0", "1"), 0)...)
	})
	t.Run("surge beside one that goes", func(t *testing.T) {
		run(t, func(w *world) {
			w.phase(corev1.PodRunning, "a", "b", "c", "e")
			w.delete("a", metav1.DeleteOptions{})
			w.has("-a=one* a=one b=one* c=one* e=one*")
			w.phase(corev1.PodFailed, "a") // replaced at once, as the first that fails is
			w.has("-a=one* a=one b=one* c=one* e=one*")
			w.phase(corev1.PodFailed, "a") // left alone for a second, and nothing is made beside it
			w.settle(300 * time.Millisecond)
			if n := len(w.pods()); n != 5 {
				t.Errorf("%d pods while one that failed is left alone", n)
			}
			w.settle(time.Second)
			w.phase(corev1.PodRunning, "a")
			w.has("-a=one* a=one* b=one* c=one* e=one*")
		}, use(rolling("0", "1"), 0)...)
	})
	t.Run("by hand", func(t *testing.T) {
		run(t, func(w *world) {
			w.phase(corev1.PodRunning, "a", "b", "c", "e")
			w.image("two")
			w.has("a=one* b=one* c=one* e=one*")
			w.delete("a", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
			w.has("a=two b=one* c=one* e=one*")
		}, use(appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}, 0)...)
	})
}

// TestCollision: a revision whose name is another's gets another name.
func TestCollision(t *testing.T) {
	ds := set()
	other := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "d-" + children.TemplateHash(&ds.Spec.Template, nil), Namespace: "ns"}}
	run(t, func(w *world) {
		if n := w.set().Status.CollisionCount; n == nil || *n != 1 {
			t.Errorf("collisions: %v", n)
		}
		w.has("a=one")
	}, node("a"), ds, other)
}

// BenchmarkThousandNodes is a look at a DaemonSet that has a pod on each of a thousand
// nodes, half of them of another template.
func BenchmarkThousandNodes(b *testing.B) {
	var nodes []*corev1.Node
	var pods []*corev1.Pod
	for i := range 1000 {
		n := node(fmt.Sprintf("n%04d", i))
		nodes = append(nodes, n)
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: types.UID(n.Name), Labels: map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: fmt.Sprint(i % 2)}},
			Spec:       corev1.PodSpec{NodeName: n.Name},
		})
	}
	ds := set()
	for b.Loop() {
		l := &look{ds: ds, fit: fitOf(ds), hash: "0", hashes: map[string]bool{"0": true}, used: make(map[string]bool), dying: make(map[types.UID]bool)}
		l.settle(nodes, pods)
		l.manage(func(string) time.Duration { return 0 })
		l.roll()
		if s := l.observe(nil); s.CurrentNumberScheduled != 1000 || len(l.toDelete) != 500 {
			b.Fatalf("%+v, %d toDelete", s, len(l.toDelete))
		}
	}
}
