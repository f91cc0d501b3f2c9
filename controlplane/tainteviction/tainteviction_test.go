package tainteviction

// Tests of the controller against an API server made of maps, in fake time: who
// is deleted, and when to the second.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/apitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A lab is a cluster with the controller. Times are since it was made.
type lab struct {
	t      *testing.T
	client *fake.Clientset
	server *apitest.Server
	start  time.Time
	events *record.FakeRecorder
	log    bytes.Buffer
	stop   func()

	mu      sync.Mutex
	deleted map[string][]time.Duration // guarded by mu: when deletion of a pod was asked for
	fail    func(verb string) error    // guarded by mu: what is answered instead
}

func newLab(t *testing.T, objs ...runtime.Object) *lab {
	client, server, err := apitest.New(objs...)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{
		t: t, client: client, server: server, start: time.Now(), events: record.NewFakeRecorder(10000),
		deleted: map[string][]time.Duration{}, fail: func(string) error { return nil },
	}
	for _, verb := range []string{"get", "patch", "delete"} {
		client.PrependReactor(verb, "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if err := l.fail(verb); err != nil {
				return true, nil, err
			}
			if d, ok := a.(clienttesting.DeleteActionImpl); ok {
				l.check(d)
				l.deleted[d.Name] = append(l.deleted[d.Name], time.Since(l.start))
			}
			return false, nil, nil
		})
	}
	return l
}

// check: deletion is graceful, and of one certain pod.
func (l *lab) check(d clienttesting.DeleteActionImpl) {
	if o := d.DeleteOptions; o.GracePeriodSeconds != nil || o.Preconditions == nil || o.Preconditions.UID == nil {
		l.t.Errorf("%s deleted with %+v", d.Name, o)
	}
}

// run starts the controller.
func (l *lab) run(c Config) *Controller {
	c.Events, c.Log = l.events, slog.New(slog.NewTextHandler(&l.log, nil))
	f := informers.NewSharedInformerFactory(l.client, 0)
	ctl, err := New(l.client, f, c)
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- ctl.Run(ctx) }()
	l.stop = func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Errorf("Run: %v", err)
		}
		f.Shutdown()
	}
	return ctl
}

// at lets time pass until t.
func (l *lab) at(t time.Duration) {
	l.t.Helper()
	left := time.Until(l.start.Add(t))
	if left < 0 {
		l.t.Fatalf("it is %v already", time.Since(l.start))
	}
	<-time.After(left)
	synctest.Wait()
}

func (l *lab) told() string {
	var out []string
	for {
		select {
		case e := <-l.events.Events:
			e = strings.ReplaceAll(strings.TrimPrefix(e, "Normal TaintManagerEviction "), " deletion", "")
			out = append(out, strings.ReplaceAll(e, " Pod ns/", " "))
		default:
			slices.Sort(out)
			return strings.Join(out, ", ")
		}
	}
}

// gone says when each pod was deleted.
func (l *lab) gone() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, name := range slices.Sorted(maps.Keys(l.deleted)) {
		for _, at := range l.deleted[name] {
			out = append(out, fmt.Sprintf("%s@%v", name, at))
		}
	}
	return strings.Join(out, " ")
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// taint sets the taints of node n, with the time now unless they have one.
func (l *lab) taint(ts ...corev1.Taint) {
	l.t.Helper()
	now := metav1.Now()
	for i := range ts {
		if ts[i].TimeAdded == nil {
			ts[i].TimeAdded = &now
		}
	}
	l.taintAsIs(ts...)
}

func (l *lab) taintAsIs(ts ...corev1.Taint) {
	l.t.Helper()
	n, err := l.client.CoreV1().Nodes().Get(l.t.Context(), "n", metav1.GetOptions{})
	l.must(err)
	n.Spec.Taints = ts
	_, err = l.client.CoreV1().Nodes().Update(l.t.Context(), n, metav1.UpdateOptions{})
	l.must(err)
}

func (l *lab) tolerate(pod string, ts ...corev1.Toleration) {
	l.t.Helper()
	p, err := l.client.CoreV1().Pods("ns").Get(l.t.Context(), pod, metav1.GetOptions{})
	l.must(err)
	p.Spec.Tolerations = ts
	_, err = l.client.CoreV1().Pods("ns").Update(l.t.Context(), p, metav1.UpdateOptions{})
	l.must(err)
}

func (l *lab) create(p *corev1.Pod) {
	l.t.Helper()
	_, err := l.client.CoreV1().Pods("ns").Create(l.t.Context(), p, metav1.CreateOptions{})
	l.must(err)
}

func (l *lab) failing(f func(verb string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = f
}

func machine(ts ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Taints: ts}}
}

func pod(name string, ts ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{NodeName: "n", Tolerations: ts},
	}
}

func execute(key string) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
}

func tolerates(key string, seconds ...int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}

const s = time.Second

// TestWhen is the table of who goes when. Each case is steps at certain times,
// the deletions asked for, and the events.
func TestWhen(t *testing.T) {
	type steps = func(l *lab)
	restart := func(l *lab) { l.stop(); l.run(Config{}) }
	for _, tc := range []struct {
		name   string
		pods   []*corev1.Pod
		node   *corev1.Node
		do     steps
		gone   string
		events string
	}{
		{"not tainted", []*corev1.Pod{pod("p")}, nil, func(l *lab) { l.at(60 * s) }, "", ""},
		{"at once", []*corev1.Pod{pod("p"), pod("q", tolerates("b"))}, nil, func(l *lab) {
			l.at(10 * s)
			l.taint(execute("a"))
		}, "p@10s q@10s", "Marking for p, Marking for q"},
		{"other effects", []*corev1.Pod{pod("p")}, nil, func(l *lab) {
			l.taint(corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: "b", Effect: corev1.TaintEffectPreferNoSchedule})
		}, "", ""},
		{"each at its time", []*corev1.Pod{
			pod("forever", tolerates("a")), pod("half", tolerates("a", 30)), pod("minute", tolerates("a", 60)),
			pod("zero", tolerates("a", 0)), pod("less", tolerates("a", -5)),
		}, nil, func(l *lab) {
			l.at(10 * s)
			l.taint(execute("a"))
		}, "half@40s less@10s minute@1m10s zero@10s", "Marking for half, Marking for less, Marking for minute, Marking for zero"},
		{"more than can be counted", []*corev1.Pod{pod("p", tolerates("a", 1<<62))}, nil, func(l *lab) {
			l.taint(execute("a"))
		}, "", ""},
		{"first toleration that covers it", []*corev1.Pod{pod("p", tolerates("", 50), tolerates("a", 5)), pod("q", tolerates("a"), tolerates("", 5))}, nil, func(l *lab) {
			l.taint(execute("a"))
		}, "p@50s", "Marking for p"},
		{"soonest of several taints", []*corev1.Pod{pod("p", tolerates("a", 50), tolerates("b", 20))}, nil, func(l *lab) {
			l.taint(execute("a"), execute("b"))
		}, "p@20s", "Marking for p"},
		{"each taint counts from its own time", []*corev1.Pod{pod("p", tolerates("a", 50), tolerates("b", 20))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(40 * s)
			now := metav1.NewTime(l.start)
			a := execute("a")
			a.TimeAdded = &now
			l.taint(a, execute("b"))
		}, "p@50s", "Marking for p"},
		{"called off", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(29 * s)
			l.taint()
		}, "", "Cancelling of p"},
		{"called off and begun again at once", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taintAsIs(execute("a"))
			l.at(20 * s)
			l.taintAsIs()
			l.taintAsIs(execute("a"))
		}, "p@50s", "Cancelling of p, Marking for p"},
		{"brought forward by another taint", []*corev1.Pod{pod("p", tolerates("a", 300), tolerates("b", 5))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(20 * s)
			l.taint(execute("a"), execute("b"))
		}, "p@25s", "Marking for p"},
		{"brought forward to now", []*corev1.Pod{pod("p", tolerates("a", 300))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(20 * s)
			l.taint(execute("a"), execute("b"))
		}, "p@20s", "Marking for p"},
		{"brought forward by a shorter toleration", []*corev1.Pod{pod("p", tolerates("a", 300))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(20 * s)
			l.tolerate("p", tolerates("a", 60))
		}, "p@1m0s", "Marking for p"},
		{"not put off by a longer toleration", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(20 * s)
			l.tolerate("p", tolerates("a", 300))
		}, "p@30s", "Marking for p"},
		{"called off by tolerating forever", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(20 * s)
			l.tolerate("p", tolerates("a"))
		}, "", "Cancelling of p"},
		{"not put off by another reason", []*corev1.Pod{pod("p", tolerates("not-ready", 30), tolerates("unreachable", 30))}, nil, func(l *lab) {
			l.taint(execute("not-ready"))
			l.at(20 * s)
			l.taint(execute("unreachable"))
		}, "p@30s", "Marking for p"},
		{"restarted", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.at(10 * s)
			l.taint(execute("a"))
			l.at(25 * s)
			restart(l)
		}, "p@40s", "Marking for p"},
		{"due while nobody ran", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(20 * s)
			l.stop()
			l.at(50 * s)
			l.run(Config{})
		}, "p@50s", "Marking for p"},
		{"restarted after the deletion", []*corev1.Pod{pod("p")}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(5 * s)
			restart(l)
		}, "p@0s", "Marking for p"},
		{"restarted, no time but that of the list", []*corev1.Pod{pod("p", tolerates("a", 30))}, written(machine(execute("a")), 0), func(l *lab) {
			l.at(20 * s)
			restart(l)
		}, "p@30s", "Marking for p"},
		{"restarted, no time at all", []*corev1.Pod{pod("p", tolerates("a", 30))}, machine(execute("a")), func(l *lab) {
			l.at(20 * s)
			restart(l)
		}, "p@50s", "Marking for p"},
		{"from the future", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			later := metav1.NewTime(l.start.Add(time.Hour))
			a := execute("a")
			a.TimeAdded = &later
			l.at(10 * s)
			l.taintAsIs(a)
		}, "p@40s", "Marking for p"},
		{"before there was a node", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			before := metav1.NewTime(l.start.Add(-time.Hour))
			a := execute("a")
			a.TimeAdded = &before
			l.at(10 * s)
			l.taintAsIs(a)
		}, "p@30s", "Marking for p"},
		{"fraction of a second", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			cut := metav1.NewTime(l.start.Add(10 * s))
			a := execute("a")
			a.TimeAdded = &cut
			l.at(10*s + 900*time.Millisecond)
			l.taintAsIs(a)
		}, "p@40.9s", "Marking for p"},
		{"bound to a node tainted long ago", nil, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(50 * s)
			l.create(pod("p", tolerates("a", 30)))
			l.create(pod("q"))
			l.at(60 * s)
			restart(l)
		}, "p@1m20s q@50s", "Marking for p, Marking for q"},
		{"deleted by somebody else meanwhile", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(20 * s)
			l.must(l.server.ObjectTracker.Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "p"))
		}, "", "Cancelling of p"},
		{"another of the same name", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(20 * s)
			l.must(l.server.ObjectTracker.Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "p"))
			l.create(pod("p", tolerates("a", 30)))
		}, "p@50s", "Cancelling of p, Marking for p"},
		{"node gone", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(20 * s)
			l.must(l.client.CoreV1().Nodes().Delete(l.t.Context(), "n", metav1.DeleteOptions{}))
		}, "p@30s", "Marking for p"},
		{"node made anew", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.at(20 * s)
			l.must(l.client.CoreV1().Nodes().Delete(l.t.Context(), "n", metav1.DeleteOptions{}))
			l.at(25 * s)
			_, err := l.client.CoreV1().Nodes().Create(l.t.Context(), machine(), metav1.CreateOptions{})
			l.must(err)
		}, "", "Cancelling of p"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objs := []runtime.Object{}
				for _, p := range tc.pods {
					objs = append(objs, p.DeepCopy())
				}
				if tc.node == nil {
					tc.node = machine()
				}
				l := newLab(t, append(objs, tc.node)...)
				l.run(Config{})
				l.at(0)
				tc.do(l)
				l.at(10 * time.Minute)
				l.stop()
				if got := l.gone(); got != tc.gone {
					t.Errorf("deleted %q, want %q", got, tc.gone)
				}
				if got := l.told(); got != tc.events {
					t.Errorf("told %q, want %q", got, tc.events)
				}
			})
		})
	}
}

// written notes on n that its taints were written after d of the lab's time.
func written(n *corev1.Node, d time.Duration) *corev1.Node {
	at := metav1.NewTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(d)) // when a bubble begins
	n.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kubectl-taint", Operation: metav1.ManagedFieldsOperationUpdate, Time: &at,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`),
	}}
	return n
}

// TestLeftAlone: what is being deleted already is not deleted again, and a pod
// keeps its own grace period.
func TestLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		grace := int64(7)
		own := pod("own", tolerates("a", 30))
		own.Spec.TerminationGracePeriodSeconds = &grace
		l := newLab(t, machine(), pod("mine"), own)
		reg := prometheus.NewRegistry()
		l.run(Config{Metrics: reg})
		l.must(l.client.CoreV1().Pods("ns").Delete(t.Context(), "mine", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(l.uid("mine")))}))
		l.at(5 * s)
		l.taint(execute("a"))
		l.at(60 * s)
		if got, want := l.gone(), "mine@0s own@35s"; got != want {
			t.Errorf("deleted %q, want %q", got, want)
		}
		if got, want := l.told(), "Marking for own"; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		p, err := l.client.CoreV1().Pods("ns").Get(t.Context(), "own", metav1.GetOptions{})
		l.must(err)
		if want := l.start.Add(42 * s); !p.DeletionTimestamp.Time.Equal(want) {
			t.Errorf("it has until %v, want %v", p.DeletionTimestamp, want)
		}
		want := corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", ObservedGeneration: 1,
			Message: "Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(l.start.Add(35 * s)),
		}
		if len(p.Status.Conditions) != 1 || p.Status.Conditions[0].String() != want.String() {
			t.Errorf("conditions %v, want %v", p.Status.Conditions, want)
		}
		l.stop()
		if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP taint_eviction_controller_pod_deletions_total Pods deleted because of a NoExecute taint.
# TYPE taint_eviction_controller_pod_deletions_total counter
taint_eviction_controller_pod_deletions_total 1
`), "taint_eviction_controller_pod_deletions_total"); err != nil {
			t.Error(err)
		}
		if n, err := testutil.GatherAndCount(reg, "taint_eviction_controller_pod_deletion_duration_seconds"); n != 1 || err != nil {
			t.Errorf("%d histograms, %v", n, err)
		}
	})
}

func (l *lab) uid(name string) types.UID {
	l.t.Helper()
	p, err := l.client.CoreV1().Pods("ns").Get(l.t.Context(), name, metav1.GetOptions{})
	l.must(err)
	return p.UID
}

// TestRetry: an eviction that fails is tried until it succeeds, announced once
// and complained of once; or until it is called off.
func TestRetry(t *testing.T) {
	refused := apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("no"))
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("changed"))
	for _, tc := range []struct {
		name     string
		verb     string
		err      error
		until    time.Duration // when it stops to fail
		untaint  bool          // and the taint goes as well
		gone     string
		warnings int
		events   string
	}{
		{"cannot be reached", "get", io.EOF, 9 * s, false, "p@10.11s", 1, "Marking for p"},
		{"cannot patch", "patch", io.EOF, 9 * s, false, "p@10.11s", 1, "Marking for p"},
		{"cannot delete", "delete", io.ErrUnexpectedEOF, 9 * s, false, "p@10.11s", 1, "Marking for p"},
		{"server says no", "delete", refused, 6 * s, false, "p@6.27s", 7, "Marking for p"},
		{"keeps changing", "delete", conflict, 6 * s, false, "p@6.27s", 0, "Marking for p"},
		{"a long time", "get", io.EOF, time.Hour, false, "p@1h0m15.95s", 1, "Marking for p"},
		{"called off meanwhile", "get", io.EOF, 9 * s, true, "", 1, "Cancelling of p, Marking for p"},
		{"gone meanwhile", "delete", apierrors.NewNotFound(corev1.Resource("pods"), "p"), time.Hour, false, "", 0, "Marking for p"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, machine(), pod("p"))
				l.failing(func(verb string) error {
					if verb == tc.verb {
						return tc.err
					}
					return nil
				})
				l.run(Config{})
				l.at(5 * s)
				l.taint(execute("a"))
				l.at(tc.until)
				l.failing(func(string) error { return nil })
				if tc.untaint {
					l.taint()
				}
				l.at(2 * time.Hour)
				l.stop()
				if got := l.gone(); got != tc.gone {
					t.Errorf("deleted %q, want %q", got, tc.gone)
				}
				if got := strings.Count(l.log.String(), "level=WARN"); got != tc.warnings {
					t.Errorf("%d warnings, want %d:\n%s", got, tc.warnings, &l.log)
				}
				if got := l.told(); got != tc.events {
					t.Errorf("told %q, want %q", got, tc.events)
				}
			})
		})
	}
}

// TestMany: a node with very many pods, each with its own time, restarted half
// way: each goes when it should, and once.
func TestMany(t *testing.T) {
	const count = 2000
	synctest.Test(t, func(t *testing.T) {
		objs := []runtime.Object{machine()}
		for i := range count {
			objs = append(objs, pod(fmt.Sprintf("p%d", i), tolerates("a", int64(i%100))))
		}
		l := newLab(t, objs...)
		l.run(Config{})
		l.at(10 * s)
		l.taint(execute("a"))
		l.at(60*s - 1)
		l.stop()
		l.run(Config{})
		l.at(200 * s)
		l.stop()
		for i := range count {
			got, want := l.deleted[fmt.Sprintf("p%d", i)], time.Duration(10+i%100)*s
			if len(got) != 1 || got[0] != want {
				t.Fatalf("p%d deleted at %v, want %v", i, got, want)
			}
		}
	})
}

// TestSharedMetrics: controllers made one after another count on.
func TestSharedMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	a, err := New(nil, f, Config{Metrics: reg})
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(nil, f, Config{Metrics: reg})
	if err != nil {
		t.Fatal(err)
	}
	a.metrics.deleted(0)
	b.metrics.deleted(0)
	if n := testutil.ToFloat64(b.metrics.deletions); n != 2 {
		t.Errorf("%v deletions, want 2", n)
	}
	odd := prometheus.NewRegistry()
	odd.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "taint_eviction_controller_pod_deletions_total"}))
	if _, err := New(nil, f, Config{Metrics: odd}); err == nil {
		t.Error("took a gauge for its counter")
	}
}
