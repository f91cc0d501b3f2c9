package scheduler

// Tests of the scheduler as it runs, in fake time against a fake API server that
// binds.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// recorder keeps events as kubectl describe would show them.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Event(obj runtime.Object, kind, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod, _ := obj.(*corev1.Pod)
	r.events = append(r.events, fmt.Sprintf("%s %s %s: %s", pod.Name, kind, reason, message))
}

func (r *recorder) Eventf(obj runtime.Object, kind, reason, format string, args ...any) {
	r.Event(obj, kind, reason, fmt.Sprintf(format, args...))
}

func (r *recorder) AnnotatedEventf(obj runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(obj, kind, reason, format, args...)
}

func (r *recorder) about(pod string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, e := range r.events {
		if rest, ok := strings.CutPrefix(e, pod+" "); ok {
			out = append(out, rest)
		}
	}
	return out
}

// A bench is a running scheduler.
type bench struct {
	t       *testing.T
	client  *fake.Clientset
	events  *recorder
	metrics *prometheus.Registry
	stop    func()
}

// binds makes client do what an API server does with a binding: refuse one of a
// pod that is gone, another, or bound.
func binds(client *fake.Clientset) {
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, _ := a.(clienttesting.CreateAction)
		b, ok := create.GetObject().(*corev1.Binding)
		if !ok || a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		obj, err := client.Tracker().Get(a.GetResource(), b.Namespace, b.Name)
		if err != nil {
			return true, nil, err
		}
		pod, _ := obj.(*corev1.Pod)
		if pod.UID != b.UID || pod.Spec.NodeName != "" {
			return true, nil, apierrors.NewConflict(corev1.Resource("pods/binding"), b.Name, errors.New("already assigned or another pod"))
		}
		pod = pod.DeepCopy()
		pod.Spec.NodeName = b.Target.Name
		return true, b, client.Tracker().Update(a.GetResource(), pod, pod.Namespace)
	})
}

func start(t *testing.T, prepare func(*fake.Clientset), objs ...runtime.Object) *bench {
	t.Helper()
	client := fake.NewClientset(objs...)
	binds(client)
	if prepare != nil {
		prepare(client)
	}
	f := informers.NewSharedInformerFactory(client, 0)
	b := &bench{t: t, client: client, events: &recorder{}, metrics: prometheus.NewRegistry()}
	s, err := New(loop.Deps{Client: client, Informers: f, Events: b.events, Metrics: b.metrics}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		f.Shutdown()
	}
	return b
}

func (b *bench) create(pods ...*corev1.Pod) {
	b.t.Helper()
	for _, p := range pods {
		if _, err := b.client.CoreV1().Pods(p.Namespace).Create(b.t.Context(), p, metav1.CreateOptions{}); err != nil {
			b.t.Fatal(err)
		}
	}
}

// after lets d pass.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (b *bench) pod(name string) *corev1.Pod {
	b.t.Helper()
	p, err := b.client.CoreV1().Pods("ns").Get(b.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

func (b *bench) isOn(name, node string) {
	b.t.Helper()
	if got := b.pod(name).Spec.NodeName; got != node {
		b.t.Errorf("pod %s is on %q, want %q; events: %q", name, got, node, b.events.about(name))
	}
}

func (b *bench) update(n *corev1.Node) {
	b.t.Helper()
	if _, err := b.client.CoreV1().Nodes().Update(b.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func TestBinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil, testNode("node-1", nil), testPod("early", nil))
		defer b.stop()
		b.create(testPod("late", nil),
			testPod("foreign", func(p *corev1.Pod) { p.Spec.SchedulerName = "other" }),
			testPod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}} }),
			testPod("done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
			testPod("unnamed", func(p *corev1.Pod) { p.Spec.SchedulerName = "" }))
		after(time.Second)
		for name, node := range map[string]string{"early": "node-1", "late": "node-1", "unnamed": "node-1", "foreign": "", "gated": "", "done": ""} {
			b.isOn(name, node)
		}
		if got, want := b.events.about("late"), []string{"Normal Scheduled: Successfully assigned ns/late to node-1"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		gated := b.pod("gated")
		gated.Spec.SchedulingGates = nil
		if _, err := b.client.CoreV1().Pods("ns").Update(t.Context(), gated, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		b.isOn("gated", "node-1")
	})
}

// TestUnschedulable follows a pod that fits nowhere: what it says, and that it
// is bound as soon as what keeps it out is gone.
func TestUnschedulable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := testNode("node-1", nil)
		b := start(t, nil, full, testNode("node-2", tainted("k", "v", corev1.TaintEffectNoSchedule)))
		defer b.stop()
		b.create(testPod("p", asks("cpu", "3")))
		after(time.Second)
		const why = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {k: v}." +
			" preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
		if got := b.events.about("p"); !slices.Equal(got, []string{"Warning FailedScheduling: " + why}) {
			t.Errorf("events %q", got)
		}
		c := b.pod("p").Status.Conditions
		if len(c) != 1 || c[0].Type != corev1.PodScheduled || c[0].Status != corev1.ConditionFalse || c[0].Reason != "Unschedulable" || c[0].Message != why {
			t.Errorf("conditions %+v", c)
		}
		after(50 * time.Second)
		if got := b.events.about("p"); len(got) != 1 {
			t.Errorf("nothing changed, and it was looked at again: %q", got)
		}
		beat := full.DeepCopy()
		beat.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		b.update(beat)
		after(time.Second)
		if got := b.events.about("p"); len(got) != 1 {
			t.Errorf("a heartbeat woke it: %q", got)
		}
		grown := beat.DeepCopy()
		grown.Status.Allocatable = quantities("cpu", "4", "memory", "4Gi", "pods", "10")
		b.update(grown)
		after(time.Second)
		b.isOn("p", "node-1")
	})
}

// TestBurst: a hundred pods at once land where there is room, all of it used and
// none twice, though the watch tells of the bindings long after they were made.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objs []runtime.Object
		for i := range 10 {
			objs = append(objs, testNode(fmt.Sprint("node-", i), func(n *corev1.Node) { n.Status.Allocatable = quantities("cpu", "1", "memory", "4Gi", "pods", "50") }))
		}
		late := func(c *fake.Clientset) {
			c.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				create, _ := a.(clienttesting.CreateAction)
				binding, ok := create.GetObject().(*corev1.Binding)
				if !ok {
					return false, nil, nil
				}
				time.AfterFunc(200*time.Millisecond, func() {
					obj, err := c.Tracker().Get(a.GetResource(), "ns", binding.Name)
					if err != nil {
						t.Error(err)
						return
					}
					pod, _ := obj.(*corev1.Pod)
					pod = pod.DeepCopy()
					pod.Spec.NodeName = binding.Target.Name
					if err := c.Tracker().Update(a.GetResource(), pod, "ns"); err != nil {
						t.Error(err)
					}
				})
				return true, binding, nil
			})
		}
		b := start(t, late, objs...)
		defer b.stop()
		for i := range 100 {
			b.create(testPod(fmt.Sprint("p", i), asks("cpu", "100m")))
		}
		b.create(testPod("extra", asks("cpu", "100m")))
		after(30 * time.Second)
		count := map[string]int{}
		list, err := b.client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			count[list.Items[i].Spec.NodeName]++
		}
		if count[""] != 1 {
			t.Errorf("%d pods without a node, want 1", count[""])
		}
		for _, node := range slices.Sorted(maps.Keys(count)) {
			if node != "" && count[node] != 10 {
				t.Errorf("%s has %d pods, want 10", node, count[node])
			}
		}
	})
}

// TestBindFails: a binding that is refused gives back the room it took, and the
// pod is tried again.
func TestBindFails(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		made  bool // the binding is made all the same
		event string
	}{
		"refused":             {apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("no")), false, "Warning FailedScheduling: binding rejected"},
		"conflict":            {apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("no")), false, "Normal Scheduled"},
		"answer lost":         {errors.New("connection reset"), true, "Normal Scheduled"},
		"request lost":        {errors.New("connection reset"), false, "Warning FailedScheduling: binding rejected"},
		"timed out, was made": {apierrors.NewTimeoutError("slow", 1), true, "Normal Scheduled"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var once sync.Once
				var failed bool
				b := start(t, func(c *fake.Clientset) {
					c.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
						fail := false
						if a.GetSubresource() == "binding" {
							once.Do(func() { fail, failed = true, true })
						}
						if !fail {
							return false, nil, nil
						}
						if tc.made {
							obj, err := c.Tracker().Get(a.GetResource(), "ns", "p")
							if err != nil {
								return true, nil, err
							}
							pod, _ := obj.(*corev1.Pod)
							pod = pod.DeepCopy()
							pod.Spec.NodeName = "node-1"
							if err := c.Tracker().Update(a.GetResource(), pod, "ns"); err != nil {
								return true, nil, err
							}
						}
						return true, nil, tc.err
					})
				}, testNode("node-1", nil))
				defer b.stop()
				b.create(testPod("p", asks("cpu", "2"))) // all of the node: a leak of room would show
				after(10 * time.Second)
				if !failed {
					t.Fatal("the binding did not fail")
				}
				b.isOn("p", "node-1")
				if got := b.events.about("p"); len(got) == 0 || !strings.HasPrefix(got[0], tc.event) {
					t.Errorf("events %q, want first %q", got, tc.event)
				}
			})
		})
	}
}

// TestPanicCostsItsPod: a pod over which the scheduler panics gives back its room
// and is tried again, and others are bound.
func TestPanicCostsItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left atomic.Int32
		left.Store(2)
		b := start(t, func(c *fake.Clientset) {
			c.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				create, _ := a.(clienttesting.CreateAction)
				if o, ok := create.GetObject().(*corev1.Binding); ok && o.Name == "odd" && left.Add(-1) >= 0 {
					panic("cannot bind")
				}
				return false, nil, nil
			})
		}, testNode("node-1", nil))
		defer b.stop()
		b.create(testPod("odd", asks("cpu", "1")))
		after(10 * time.Millisecond)
		b.create(testPod("p", asks("cpu", "1")))
		after(time.Minute)
		b.isOn("odd", "node-1")
		b.isOn("p", "node-1")
	})
}

// TestRunAgain: a scheduler that is run a second time starts from what is.
func TestRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(testNode("node-1", nil), testPod("there", func(p *corev1.Pod) { asks("cpu", "1500m")(p); p.Spec.NodeName = "node-1" }))
		binds(client)
		f := informers.NewSharedInformerFactory(client, 0)
		s, err := New(loop.Deps{Client: client, Informers: f}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		all, cancelAll := context.WithCancel(t.Context())
		f.Start(all.Done())
		f.WaitForCacheSync(all.Done())
		for i := range 2 {
			ctx, cancel := context.WithCancel(all)
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			name := fmt.Sprint("p", i)
			if _, err := client.CoreV1().Pods("ns").Create(ctx, testPod(name, asks("cpu", "250m")), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			after(time.Second)
			if p, err := client.CoreV1().Pods("ns").Get(ctx, name, metav1.GetOptions{}); err != nil || p.Spec.NodeName != "node-1" {
				t.Errorf("run %d: pod on %q, %v", i, p.Spec.NodeName, err)
			}
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run %d: %v", i, err)
			}
		}
		cancelAll()
		f.Shutdown()
	})
}

// TestPriority: of pods that wait for room the most important gets it, and among
// equals the oldest.
func TestPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		defer b.stop()
		important := func(priority int32) func(*corev1.Pod) {
			return func(p *corev1.Pod) {
				asks("cpu", "2")(p) // all of a node
				p.Spec.Priority = &priority
			}
		}
		for i, priority := range []int32{0, 0, -1, 2_000_000_000, 5} {
			b.create(testPod(fmt.Sprint("p", i), important(priority)))
			after(time.Second)
		}
		after(20 * time.Second) // the longest back-off is over
		for i, want := range []string{"p3", "p4", "p0", "p1", "p2"} {
			node := fmt.Sprint("node-", i)
			if _, err := b.client.CoreV1().Nodes().Create(t.Context(), testNode(node, nil), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			after(11 * time.Second)
			b.isOn(want, node)
		}
	})
}
