package disruption

// Tests of the sums, and of the loop in fake time.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type world struct {
	*testing.T
	ctx    context.Context
	client *fake.Clientset
	scales *dynamicfake.FakeDynamicClient // of custom resources
	events *record.FakeRecorder
}

// discovering has a client say which resources there are.
type discovering struct{ *fake.Clientset }

func (c discovering) Discovery() discovery.DiscoveryInterfaces {
	return &fakediscovery.FakeDiscovery{Fake: &c.Fake}
}

func run(t *testing.T, f func(w *world), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New(objs...)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, ctx: t.Context(), client: client, scales: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), events: record.NewFakeRecorder(1000)}
		_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
			return New(loop.Deps{Client: discovering{client}, Custom: w.scales, Informers: f, Events: w.events}, Config{})
		})
		w.settle(0)
		f(w)
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (w *world) settle(d time.Duration) {
	w.Helper()
	<-time.After(d + time.Second)
	synctest.Wait()
}

func (w *world) budget() *policyv1.PodDisruptionBudget {
	w.Helper()
	b, err := w.client.PolicyV1().PodDisruptionBudgets("ns").Get(w.ctx, "b", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return b
}

// status is the sums and the condition on one line.
func (w *world) status() string {
	w.Helper()
	s := w.budget().Status
	c := meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition)
	if c == nil {
		return "no condition"
	}
	return fmt.Sprintf("%d expected, %d of %d healthy, %d allowed, gen %d, %s %s", s.ExpectedPods, s.CurrentHealthy, s.DesiredHealthy, s.DisruptionsAllowed, s.ObservedGeneration, c.Status, c.Reason)
}

func (w *world) expect(step, want string) {
	w.Helper()
	if got := w.status(); got != want {
		w.Errorf("%s: %s\nwant %s", step, got, want)
	}
}

func budget(edit func(*policyv1.PodDisruptionBudgetSpec)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}},
	}
	edit(&b.Spec)
	return b
}

func least(v string) func(*policyv1.PodDisruptionBudgetSpec) {
	return func(s *policyv1.PodDisruptionBudgetSpec) { s.MinAvailable = ptr.To(intstr.Parse(v)) }
}

func most(v string) func(*policyv1.PodDisruptionBudgetSpec) {
	return func(s *policyv1.PodDisruptionBudgetSpec) { s.MaxUnavailable = ptr.To(intstr.Parse(v)) }
}

// pods makes n ready pods that owner controls.
func pods(prefix string, n int, owner *metav1.OwnerReference) []runtime.Object {
	var out []runtime.Object
	for i := range n {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", prefix, i), Namespace: "ns", Labels: map[string]string{"app": "x"}},
			Spec:       corev1.PodSpec{NodeName: "n"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
		if owner != nil {
			p.OwnerReferences = []metav1.OwnerReference{*owner}
		}
		out = append(out, p)
	}
	return out
}

func ref(apiVersion, kind, name string) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(name), Controller: ptr.To(true)}
}

func named(name string, owner *metav1.OwnerReference) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)}
	if owner != nil {
		m.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return m
}

func set(name string, n int32, owner *metav1.OwnerReference) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: named(name, owner), Spec: appsv1.ReplicaSetSpec{Replicas: &n}}
}

func TestSums(t *testing.T) {
	mine, stranger := ref("apps/v1", "ReplicaSet", "rs"), ref("example.com/v1", "Thing", "thing")
	deploy := &appsv1.Deployment{ObjectMeta: named("d", nil), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](10)}}
	up := ref("apps/v1", "Deployment", "d")
	stateful := &appsv1.StatefulSet{ObjectMeta: named("s", nil), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](4)}}
	old := &corev1.ReplicationController{ObjectMeta: named("rc", nil), Spec: corev1.ReplicationControllerSpec{Replicas: ptr.To[int32](4)}}
	job := &batchv1.Job{ObjectMeta: named("j", nil), Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](8), Completions: ptr.To[int32](4)}}
	for _, tc := range []struct {
		name   string
		edit   func(*policyv1.PodDisruptionBudgetSpec)
		others []runtime.Object
		pods   []runtime.Object
		want   string
		event  string
	}{
		{"at least two", least("2"), nil, pods("p", 3, nil), "3 expected, 3 of 2 healthy, 1 allowed, gen 1, True SufficientPods", ""},
		{"at least all", least("3"), nil, pods("p", 3, nil), "3 expected, 3 of 3 healthy, 0 allowed, gen 1, False InsufficientPods", ""},
		{"fewer than there must be", least("5"), nil, pods("p", 3, nil), "3 expected, 3 of 5 healthy, 0 allowed, gen 1, False InsufficientPods", ""},
		{"no pods", least("1"), nil, nil, "0 expected, 0 of 1 healthy, 0 allowed, gen 1, False InsufficientPods", "Normal NoPods No matching pods found"},
		{"no limit", func(*policyv1.PodDisruptionBudgetSpec) {}, nil, pods("p", 3, nil), "0 expected, 3 of 0 healthy, 0 allowed, gen 1, False InsufficientPods", ""},
		{"at least a share, rounded up", least("50%"), []runtime.Object{set("rs", 5, nil)}, pods("p", 5, mine), "5 expected, 5 of 3 healthy, 2 allowed, gen 1, True SufficientPods", ""},
		{"at most one out", most("1"), []runtime.Object{set("rs", 3, nil)}, pods("p", 3, mine), "3 expected, 3 of 2 healthy, 1 allowed, gen 1, True SufficientPods", ""},
		{"at most one out and one is missing", most("1"), []runtime.Object{set("rs", 3, nil)}, pods("p", 2, mine), "3 expected, 2 of 2 healthy, 0 allowed, gen 1, False InsufficientPods", ""},
		{"at most a share out, rounded up", most("34%"), []runtime.Object{set("rs", 3, nil)}, pods("p", 3, mine), "3 expected, 3 of 1 healthy, 2 allowed, gen 1, True SufficientPods", ""},
		{"all may be out", most("100%"), []runtime.Object{set("rs", 3, nil)}, pods("p", 3, mine), "3 expected, 3 of 0 healthy, 3 allowed, gen 1, True SufficientPods", ""},
		{"more than all may be out", most("7"), []runtime.Object{set("rs", 3, nil)}, pods("p", 3, mine), "3 expected, 3 of 0 healthy, 3 allowed, gen 1, True SufficientPods", ""},
		{
			"two sets of one deployment", least("50%"),
			[]runtime.Object{deploy, set("rs", 7, up), set("rs2", 5, up)},
			append(pods("p", 7, mine), pods("q", 5, ref("apps/v1", "ReplicaSet", "rs2"))...),
			"10 expected, 12 of 5 healthy, 7 allowed, gen 1, True SufficientPods", "",
		},
		{
			"one each of all kinds", least("50%"),
			[]runtime.Object{stateful, old, job, set("rs", 4, nil)},
			slices.Concat(pods("p", 4, ref("apps/v1", "StatefulSet", "s")), pods("q", 4, ref("v1", "ReplicationController", "rc")),
				pods("j", 4, ref("batch/v1", "Job", "j")), pods("r", 4, mine)),
			"16 expected, 16 of 8 healthy, 8 allowed, gen 1, True SufficientPods", "",
		},
		{"unmanaged", most("1"), nil, pods("p", 3, nil), "0 expected, 3 of 0 healthy, 0 allowed, gen 1, False InsufficientPods", "Warning UnmanagedPods Pods selected by this PodDisruptionBudget (selector: app=x) were found to be unmanaged."},
		{"of a kind without a scale", most("1"), nil, pods("p", 3, stranger), "0 expected, 0 of 0 healthy, 0 allowed, gen 1, False SyncFailed", "Warning CalculateExpectedPodCountFailed Failed to calculate the number of expected pods: pod p-"},
		{"of nobody that is there", most("1"), []runtime.Object{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "rs", Namespace: "ns", UID: "another"}}}, pods("p", 3, mine), "0 expected, 0 of 0 healthy, 0 allowed, gen 1, False SyncFailed", "Warning CalculateExpectedPodCountFailed"},
		{"all pods there are", func(s *policyv1.PodDisruptionBudgetSpec) {
			least("1")(s)
			s.Selector = &metav1.LabelSelector{}
		}, nil, pods("p", 3, nil), "3 expected, 3 of 1 healthy, 2 allowed, gen 1, True SufficientPods", ""},
		{"no selector", func(s *policyv1.PodDisruptionBudgetSpec) {
			least("1")(s)
			s.Selector = nil
		}, nil, pods("p", 3, nil), "0 expected, 0 of 1 healthy, 0 allowed, gen 1, False InsufficientPods", "Normal NoPods"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			objs := slices.Concat([]runtime.Object{budget(tc.edit)}, tc.others, tc.pods)
			for i := range objs {
				objs[i] = objs[i].DeepCopyObject()
			}
			run(t, func(w *world) {
				w.expect(tc.name, tc.want)
				select {
				case e := <-w.events.Events:
					if tc.event == "" || !strings.HasPrefix(e, tc.event) {
						w.Errorf("event %q, want %q", e, tc.event)
					}
				default:
					if tc.event != "" {
						w.Errorf("no event, want %q", tc.event)
					}
				}
			}, objs...)
		})
	}
}

func (w *world) change(name string, edit func(*corev1.Pod)) {
	w.Helper()
	p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	edit(p)
	if p, err = w.client.CoreV1().Pods("ns").Update(w.ctx, p, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	edit(p)
	if _, err = w.client.CoreV1().Pods("ns").UpdateStatus(w.ctx, p, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.settle(0)
}

// TestFollows: the sums follow the pods and the budget.
func TestFollows(t *testing.T) {
	run(t, func(w *world) {
		w.expect("at first", "3 expected, 3 of 1 healthy, 2 allowed, gen 1, True SufficientPods")
		w.change("p-0", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
		w.expect("one is not ready", "3 expected, 2 of 1 healthy, 1 allowed, gen 1, True SufficientPods")
		w.change("p-1", func(p *corev1.Pod) { p.Labels["app"] = "y" })
		w.expect("one is relabelled", "2 expected, 1 of 1 healthy, 0 allowed, gen 1, False InsufficientPods")
		w.change("p-1", func(p *corev1.Pod) { p.Labels["app"] = "x" })
		if err := w.client.CoreV1().Pods("ns").Delete(w.ctx, "p-2", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		w.settle(0)
		w.expect("one is being deleted", "3 expected, 1 of 1 healthy, 0 allowed, gen 1, False InsufficientPods")
		b := w.budget()
		b.Spec.MinAvailable = ptr.To(intstr.FromInt32(0))
		if _, err := w.client.PolicyV1().PodDisruptionBudgets("ns").Update(w.ctx, b, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		w.settle(0)
		w.expect("of another mind", "3 expected, 1 of 0 healthy, 1 allowed, gen 2, True SufficientPods")
		b = w.budget()
		b.Spec.Selector.MatchLabels["app"] = "z"
		if _, err := w.client.PolicyV1().PodDisruptionBudgets("ns").Update(w.ctx, b, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		w.settle(0)
		w.expect("with another selector", "0 expected, 0 of 0 healthy, 0 allowed, gen 3, False InsufficientPods")
		w.change("p-1", func(p *corev1.Pod) { p.Labels["app"] = "z" })
		w.expect("one is relabelled to that", "1 expected, 1 of 0 healthy, 1 allowed, gen 3, True SufficientPods")
		writes := len(w.client.Actions())
		w.settle(time.Hour)
		if n := len(w.client.Actions()); n != writes {
			w.Errorf("%d requests while nothing happens", n-writes)
		}
	}, append(pods("p", 3, nil), budget(least("1")))...)
}

// many are a controller and so many budgets of one namespace.
func many(tb testing.TB, n int) *Controller {
	tb.Helper()
	client, _, err := apitest.New()
	if err != nil {
		tb.Fatal(err)
	}
	c, err := New(loop.Deps{Client: client, Informers: informers.NewSharedInformerFactory(client, 0)}, Config{})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range n {
		b := budget(least("1"))
		b.Name, b.Spec.Selector.MatchLabels["app"] = fmt.Sprint("b-", i), fmt.Sprint("x-", i)
		b.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a", "b", "c"}}}
		if err := c.inf.GetIndexer().Add(b); err != nil {
			tb.Fatal(err)
		}
		c.readSelector("ns/" + b.Name)
	}
	return c
}

// TestManyBudgets: a change of a pod does not have all selectors read again, and a selector is
// forgotten with its budget.
func TestManyBudgets(t *testing.T) {
	const n = 1000
	c := many(t, n)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: map[string]string{"app": "x-7"}}}
	var found []string
	c.covering(p, func(key string) { found = append(found, key) })
	if !slices.Equal(found, []string{"ns/b-7"}) {
		t.Errorf("the pod is covered by %v", found)
	}
	if a := testing.AllocsPerRun(10, func() { c.covering(p, func(string) {}) }); a > n/10 {
		t.Errorf("a change of a pod makes %v allocations", a)
	}
	for i := range n {
		key := fmt.Sprint("ns/b-", i)
		if obj, ok, err := c.inf.GetIndexer().GetByKey(key); err != nil || !ok || c.inf.GetIndexer().Delete(obj) != nil {
			t.Fatal(ok, err)
		}
		c.readSelector(key)
	}
	if len(c.selectors) > 0 {
		t.Errorf("%d namespaces have selectors of budgets that are gone", len(c.selectors))
	}
}

func BenchmarkPodOfManyBudgets(b *testing.B) {
	c := many(b, 5000)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: map[string]string{"app": "x-7"}}}
	b.ReportAllocs()
	for b.Loop() {
		c.covering(p, func(string) {})
	}
}

// TestGranted: a pod whose eviction was granted counts as gone until it is, or
// for two minutes.
func TestGranted(t *testing.T) {
	run(t, func(w *world) {
		start := time.Now()
		b := w.budget()
		b.Status.DisruptedPods = map[string]metav1.Time{"p-0": metav1.Now(), "p-1": metav1.Now(), "no such pod": metav1.Now()}
		b.Status.DisruptionsAllowed = 0
		if _, err := w.client.PolicyV1().PodDisruptionBudgets("ns").UpdateStatus(w.ctx, b, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		w.settle(0)
		w.expect("two granted", "3 expected, 1 of 1 healthy, 0 allowed, gen 1, False InsufficientPods")
		if n := len(w.budget().Status.DisruptedPods); n != 2 {
			w.Errorf("%d pods noted, want 2", n)
		}
		if err := w.client.CoreV1().Pods("ns").Delete(w.ctx, "p-1", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		w.settle(0)
		w.expect("one is going", "3 expected, 1 of 1 healthy, 0 allowed, gen 1, False InsufficientPods")
		if _, noted := w.budget().Status.DisruptedPods["p-1"]; noted {
			w.Error("a pod that is being deleted is still noted")
		}
		w.settle(DefaultDeletionTimeout - time.Since(start) - 2*time.Second)
		w.expect("just before two minutes", "3 expected, 1 of 1 healthy, 0 allowed, gen 1, False InsufficientPods")
		w.settle(time.Second)
		w.expect("after two minutes", "3 expected, 2 of 1 healthy, 1 allowed, gen 1, True SufficientPods")
		if e := <-w.events.Events; e != "Warning NotDeleted Pod was expected by PDB ns/b to be deleted but it wasn't" {
			w.Errorf("event %q", e)
		}
		if n := len(w.budget().Status.DisruptedPods); n != 0 {
			w.Errorf("%d pods noted, want none", n)
		}
	}, append(pods("p", 3, nil), budget(least("1")))...)
}

// scaled has the API server serve things, of which some can be scaled, and say what want tells of
// each: a UID and a number of pods.
func (w *world) scaled(want map[string]int64) {
	w.client.Resources = []*metav1.APIResourceList{{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
		{Name: "things", Kind: "Thing", Namespaced: true},
		{Name: "things/scale", Kind: "Scale", Group: "autoscaling", Version: "v1", Namespaced: true},
		{Name: "plains", Kind: "Plain", Namespaced: true},
	}}}
	w.scales.PrependReactor("get", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		get, ok := a.(clienttesting.GetAction)
		if !ok || a.GetSubresource() != "scale" || a.GetResource().Resource != "things" || a.GetNamespace() != "ns" {
			w.Errorf("asked for %v", a)
		}
		n, ok := want[get.GetName()]
		if !ok {
			return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), get.GetName())
		}
		return true, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": map[string]any{"name": get.GetName(), "namespace": "ns", "uid": get.GetName()},
			"spec": map[string]any{"replicas": n},
		}}, nil
	})
}

// TestScales: what a custom resource wants is read from its scale, once for all its pods.
func TestScales(t *testing.T) {
	thing := ref("example.com/v1", "Thing", "thing")
	anew := ref("example.com/v1", "Thing", "thing")
	anew.UID = "before"
	for _, tc := range []struct {
		name  string
		owner *metav1.OwnerReference
		want  string
	}{
		{"scaled", thing, "10 expected, 3 of 2 healthy, 1 allowed, gen 1, True SufficientPods"},
		{"made anew", anew, "0 expected, 0 of 0 healthy, 0 allowed, gen 1, False SyncFailed"},
		{"gone", ref("example.com/v1", "Thing", "gone"), "0 expected, 0 of 0 healthy, 0 allowed, gen 1, False SyncFailed"},
		{"without scale", ref("example.com/v1", "Plain", "plain"), "0 expected, 0 of 0 healthy, 0 allowed, gen 1, False SyncFailed"},
		{"of no such kind", ref("example.com/v1", "None", "none"), "0 expected, 0 of 0 healthy, 0 allowed, gen 1, False SyncFailed"},
		{"of no such group", ref("other.example.com/v1", "Thing", "thing"), "0 expected, 0 of 0 healthy, 0 allowed, gen 1, False SyncFailed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(w *world) {
				w.scaled(map[string]int64{"thing": 10})
				if _, err := w.client.PolicyV1().PodDisruptionBudgets("ns").Create(w.ctx, budget(most("8")), metav1.CreateOptions{}); err != nil {
					w.Fatal(err)
				}
				w.settle(0)
				w.expect(tc.name, tc.want)
				if n := len(w.scales.Actions()); tc.owner == thing && n != 2 { // the status that was written causes the second look
					w.Errorf("%d requests for two looks at three pods", n)
				}
			}, pods("p", 3, tc.owner)...)
		})
	}
	t.Run("too many", func(t *testing.T) {
		var all []runtime.Object
		want := map[string]int64{}
		for i := range maxScales + 1 {
			name := fmt.Sprint("thing-", i)
			want[name] = 1
			all = append(all, pods(name, 1, ref("example.com/v1", "Thing", name))...)
		}
		run(t, func(w *world) {
			w.scaled(want)
			if _, err := w.client.PolicyV1().PodDisruptionBudgets("ns").Create(w.ctx, budget(most("8")), metav1.CreateOptions{}); err != nil {
				w.Fatal(err)
			}
			<-time.After(time.Millisecond)
			synctest.Wait()
			if n := len(w.scales.Actions()); n == 0 || n > 2*maxScales {
				w.Errorf("%d requests for two looks", n)
			}
			w.expect("too many", "0 expected, 0 of 0 healthy, 0 allowed, gen 1, False SyncFailed")
		}, all...)
	})
}
