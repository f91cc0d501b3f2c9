package tainteviction

// Tests of the controller against an API server made of maps, in fake time: who
// is deleted, and when to the second.

import (
	"errors"
	"fmt"
	"io"
	"strings"
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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const s = time.Second

// TestWhen is the table of who goes when. Each case is steps at certain times,
// the deletions asked for, and the events.
func TestWhen(t *testing.T) {
	type steps = func(l *lab)
	restart := func(l *lab) { l.Stop(); l.run() }
	for _, tc := range []struct {
		name   string
		pods   []*corev1.Pod
		node   *corev1.Node
		do     steps
		gone   string
		events string
	}{
		{"not tainted", []*corev1.Pod{pod("p")}, nil, func(l *lab) { l.At(60 * s) }, "", ""},
		{"at once", []*corev1.Pod{pod("p"), pod("q", tolerates("b"))}, nil, func(l *lab) {
			l.At(10 * s)
			l.taint(execute("a"))
		}, "p@10s q@10s", "Marking for p, Marking for q"},
		{"other effects", []*corev1.Pod{pod("p")}, nil, func(l *lab) {
			l.taint(corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: "b", Effect: corev1.TaintEffectPreferNoSchedule})
		}, "", ""},
		{"each at its time", []*corev1.Pod{
			pod("forever", tolerates("a")), pod("half", tolerates("a", 30)), pod("minute", tolerates("a", 60)),
			pod("zero", tolerates("a", 0)), pod("less", tolerates("a", -5)),
		}, nil, func(l *lab) {
			l.At(10 * s)
			l.taint(execute("a"))
		}, "half@40s less@10s minute@1m10s zero@10s", "Marking for half, Marking for less, Marking for minute, Marking for zero"},
		{"more than can be counted", []*corev1.Pod{pod("p", tolerates("a", 1<<62))}, nil, func(l *lab) {
			l.taint(execute("a"))
		}, "", ""},
		{"first toleration that covers it", []*corev1.Pod{pod("p", tolerates("", 50), tolerates("a", 5)), pod("q", tolerates("a"), tolerates("", 5))}, nil, func(l *lab) {
			l.taint(execute("a"))
		}, "p@50s", "Marking for p"},
		{"compared numbers", []*corev1.Pod{
			pod("less", numeric(corev1.TolerationOpLt, "7")), pod("more", numeric(corev1.TolerationOpGt, "7")),
			pod("equal", numeric(corev1.TolerationOpLt, "5")), pod("while", numeric(corev1.TolerationOpLt, "7", 20)),
		}, nil, func(l *lab) {
			a := execute("a")
			a.Value = "5"
			l.taint(a)
		}, "equal@0s more@0s while@20s", "Marking for equal, Marking for more, Marking for while"},
		{"soonest of several taints", []*corev1.Pod{pod("p", tolerates("a", 50), tolerates("b", 20))}, nil, func(l *lab) {
			l.taint(execute("a"), execute("b"))
		}, "p@20s", "Marking for p"},
		{"each taint counts from its own time", []*corev1.Pod{pod("p", tolerates("a", 50), tolerates("b", 20))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(40 * s)
			now := metav1.NewTime(l.Start)
			a := execute("a")
			a.TimeAdded = &now
			l.taint(a, execute("b"))
		}, "p@50s", "Marking for p"},
		{"called off", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(29 * s)
			l.taint()
		}, "", "Cancelling of p"},
		{"called off and begun again at once", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taintAsIs(execute("a"))
			l.At(20 * s)
			l.taintAsIs()
			l.taintAsIs(execute("a"))
		}, "p@50s", "Cancelling of p, Marking for p"},
		{"brought forward by another taint", []*corev1.Pod{pod("p", tolerates("a", 300), tolerates("b", 5))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(20 * s)
			l.taint(execute("a"), execute("b"))
		}, "p@25s", "Marking for p"},
		{"brought forward to now", []*corev1.Pod{pod("p", tolerates("a", 300))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(20 * s)
			l.taint(execute("a"), execute("b"))
		}, "p@20s", "Marking for p"},
		{"brought forward by a shorter toleration", []*corev1.Pod{pod("p", tolerates("a", 300))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(20 * s)
			l.tolerate("p", tolerates("a", 60))
		}, "p@1m0s", "Marking for p"},
		{"not put off by a longer toleration", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(20 * s)
			l.tolerate("p", tolerates("a", 300))
		}, "p@30s", "Marking for p"},
		{"called off by tolerating forever", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(20 * s)
			l.tolerate("p", tolerates("a"))
		}, "", "Cancelling of p"},
		{"not put off by another reason", []*corev1.Pod{pod("p", tolerates("not-ready", 30), tolerates("unreachable", 30))}, nil, func(l *lab) {
			l.taint(execute("not-ready"))
			l.At(20 * s)
			l.taint(execute("unreachable"))
		}, "p@30s", "Marking for p"},
		{"restarted", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.At(10 * s)
			l.taint(execute("a"))
			l.At(25 * s)
			restart(l)
		}, "p@41s", "Marking for p"},
		{"restarted, added late in a second", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			cut := metav1.NewTime(l.Start.Add(10 * s)) // as the API has it
			a := execute("a")
			a.TimeAdded = &cut
			l.At(10*s + 900*time.Millisecond)
			l.taintAsIs(a)
			l.At(25 * s)
			restart(l)
		}, "p@41s", "Marking for p"},
		{"late to see it", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			cut := metav1.NewTime(l.Start.Add(10 * s))
			a := execute("a")
			a.TimeAdded = &cut
			l.At(12 * s)
			l.taintAsIs(a)
		}, "p@41s", "Marking for p"},
		{"due while nobody ran", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(20 * s)
			l.Stop()
			l.At(50 * s)
			l.run()
		}, "p@50s", "Marking for p"},
		{"restarted after the deletion", []*corev1.Pod{pod("p")}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(5 * s)
			restart(l)
		}, "p@0s", "Marking for p"},
		{"restarted, no time but that of the list", []*corev1.Pod{pod("p", tolerates("a", 30))}, written(machine(execute("a")), 0), func(l *lab) {
			l.At(20 * s)
			restart(l)
		}, "p@31s", "Marking for p"},
		{"restarted, no time at all", []*corev1.Pod{pod("p", tolerates("a", 30))}, machine(execute("a")), func(l *lab) {
			l.At(20 * s)
			restart(l)
		}, "p@50s", "Marking for p"},
		{"from the future", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			later := metav1.NewTime(l.Start.Add(time.Hour))
			a := execute("a")
			a.TimeAdded = &later
			l.At(10 * s)
			l.taintAsIs(a)
		}, "p@40s", "Marking for p"},
		{"before there was a node", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			before := metav1.NewTime(l.Start.Add(-time.Hour))
			a := execute("a")
			a.TimeAdded = &before
			l.At(10 * s)
			l.taintAsIs(a)
		}, "p@31s", "Marking for p"},
		{"fraction of a second", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			cut := metav1.NewTime(l.Start.Add(10 * s))
			a := execute("a")
			a.TimeAdded = &cut
			l.At(10*s + 900*time.Millisecond)
			l.taintAsIs(a)
		}, "p@40.9s", "Marking for p"},
		{"bound to a node tainted long ago", nil, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(50 * s)
			l.create(pod("p", tolerates("a", 30)))
			l.create(pod("q"))
			l.At(60 * s)
			restart(l)
		}, "p@1m21s q@50s", "Marking for p, Marking for q"},
		{"fraction of a second, looked at twice", nil, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(50*s + 900*time.Millisecond)
			p := pod("p", tolerates("a", 30))
			p.CreationTimestamp = metav1.NewTime(l.Start.Add(50 * s)) // as the API has it
			l.create(p)
			l.At(60 * s)
			l.tolerate("p", tolerates("a", 30), tolerates("b"))
		}, "p@1m20.9s", "Marking for p"},
		{"deleted by somebody else meanwhile", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(20 * s)
			l.Must(l.Server.ObjectTracker.Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "p"))
		}, "", "Cancelling of p"},
		{"another of the same name", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(20 * s)
			l.Must(l.Server.ObjectTracker.Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "p"))
			l.create(pod("p", tolerates("a", 30)))
		}, "p@50s", "Cancelling of p, Marking for p"},
		{"node gone", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(20 * s)
			l.Must(l.Client.CoreV1().Nodes().Delete(l.Context(), "n", metav1.DeleteOptions{}))
		}, "p@30s", "Marking for p"},
		{"node made anew", []*corev1.Pod{pod("p", tolerates("a", 30))}, nil, func(l *lab) {
			l.taint(execute("a"))
			l.At(20 * s)
			l.Must(l.Client.CoreV1().Nodes().Delete(l.Context(), "n", metav1.DeleteOptions{}))
			l.At(25 * s)
			_, err := l.Client.CoreV1().Nodes().Create(l.Context(), machine(), metav1.CreateOptions{})
			l.Must(err)
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
				l.run()
				l.At(0)
				tc.do(l)
				l.At(10 * time.Minute)
				l.Stop()
				if got := l.Noted().String(); got != tc.gone {
					t.Errorf("deleted %q, want %q", got, tc.gone)
				}
				if got := l.told(); got != tc.events {
					t.Errorf("told %q, want %q", got, tc.events)
				}
			})
		})
	}
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
		l.count(reg)
		l.Must(l.Client.CoreV1().Pods("ns").Delete(t.Context(), "mine", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(l.uid("mine")))}))
		l.At(5 * s)
		l.taint(execute("a"))
		l.At(60 * s)
		if got, want := l.Noted().String(), "mine@0s own@35s"; got != want {
			t.Errorf("deleted %q, want %q", got, want)
		}
		if got, want := l.told(), "Marking for own"; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		p, err := l.Client.CoreV1().Pods("ns").Get(t.Context(), "own", metav1.GetOptions{})
		l.Must(err)
		if want := l.Start.Add(42 * s); !p.DeletionTimestamp.Time.Equal(want) {
			t.Errorf("it has until %v, want %v", p.DeletionTimestamp, want)
		}
		want := corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", ObservedGeneration: 1,
			Message: "Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(l.Start.Add(35 * s)),
		}
		if len(p.Status.Conditions) != 1 || p.Status.Conditions[0].String() != want.String() {
			t.Errorf("conditions %v, want %v", p.Status.Conditions, want)
		}
		l.Stop()
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
				l.Failing(func(verb, resource, _ string) error {
					if verb == tc.verb && resource == "pods" {
						return tc.err
					}
					return nil
				})
				l.run()
				l.At(5 * s)
				l.taint(execute("a"))
				l.At(tc.until)
				l.Failing(nil)
				if tc.untaint {
					l.taint()
				}
				l.At(2 * time.Hour)
				l.Stop()
				if got := l.Noted().String(); got != tc.gone {
					t.Errorf("deleted %q, want %q", got, tc.gone)
				}
				if got := strings.Count(l.Said.String(), "level=WARN"); got != tc.warnings {
					t.Errorf("%d warnings, want %d:\n%s", got, tc.warnings, l.Said)
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
		l.run()
		l.At(10 * s)
		l.taint(execute("a"))
		l.At(60*s - 1)
		l.Stop()
		l.run()
		l.At(200 * s)
		l.Stop()
		deleted := l.Noted()
		for i := range count {
			got, want := deleted[fmt.Sprintf("p%d", i)], time.Duration(10+i%100)*s
			if i%100 >= 50 {
				want += s // the second run knows the time of the taint to a second
			}
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
	a, err := New(loop.Deps{Informers: f, Metrics: reg}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(loop.Deps{Informers: f, Metrics: reg}, Config{})
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
	if _, err := New(loop.Deps{Informers: f, Metrics: odd}, Config{}); err == nil {
		t.Error("took a gauge for its counter")
	}
}
