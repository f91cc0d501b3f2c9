package podgc

// Tests of the controller against an API server made of maps, in fake time.

import (
	"context"
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

	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const s = time.Second

// TestOrphans follows pods whose node is not there: who is removed, and when.
func TestOrphans(t *testing.T) {
	unreachable := func(verb, resource, _ string) error {
		if verb == "get" && resource == "nodes" {
			return io.EOF
		}
		return nil
	}
	for _, tc := range []struct {
		name  string
		nodes []string
		do    func(l *lab)
		gone  string
	}{
		{"node is there", []string{"n"}, func(*lab) {}, ""},
		{"never was there", nil, func(*lab) {}, "done@40s p@40s q@40s"},
		{"deleted", []string{"n"}, func(l *lab) {
			l.At(25 * s)
			l.deleteNode("n")
		}, "done@1m20s p@1m20s q@1m20s"},
		{"deleted just before a pass", []string{"n"}, func(l *lab) {
			l.At(20*s - 1)
			l.deleteNode("n")
		}, "done@1m0s p@1m0s q@1m0s"},
		{"comes within the quarantine", nil, func(l *lab) {
			l.At(35 * s)
			l.createNode("n")
		}, ""},
		{"comes, and goes again", nil, func(l *lab) {
			l.At(35 * s)
			l.createNode("n")
			l.At(45 * s)
			l.deleteNode("n")
		}, "done@1m40s p@1m40s q@1m40s"},
		{"cannot ask", nil, func(l *lab) {
			l.Failing(unreachable)
			l.At(70 * s)
			l.Failing(nil)
		}, "done@1m20s p@1m20s q@1m20s"},
		{"may not ask", nil, func(l *lab) {
			l.Failing(func(verb, resource, name string) error {
				if verb == "get" && resource == "nodes" {
					return apierrors.NewForbidden(corev1.Resource("nodes"), name, errors.New("no"))
				}
				return nil
			})
		}, ""},
		{"known to the server only", nil, func(l *lab) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.hidden = "n"
		}, ""},
		{"restarted", nil, func(l *lab) {
			l.At(30 * s)
			l.Stop()
			l.run(Config{})
		}, "done@1m10s p@1m10s q@1m10s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objs := []runtime.Object{pod("p", "n", corev1.PodRunning), pod("q", "n", corev1.PodPending), pod("done", "n", corev1.PodSucceeded), pod("free", "", corev1.PodPending)}
				for _, n := range tc.nodes {
					objs = append(objs, machine(n))
				}
				l := newLab(t, objs...)
				l.run(Config{})
				l.At(0)
				tc.do(l)
				l.At(10 * time.Minute)
				l.Stop()
				if got := l.Noted().String(); got != tc.gone {
					t.Errorf("removed %q, want %q", got, tc.gone)
				}
				if tc.gone == "" {
					return
				}
				for _, name := range []string{"p", "q"} {
					for _, part := range []string{
						`"phase":"Failed"`, `"type":"DisruptionTarget"`, `"status":"True"`, `"reason":"DeletionByPodGC"`,
						`"message":"PodGC: node no longer exists"`, `"metadata":{"uid":"uid-`,
					} {
						if !strings.Contains(l.patches[name], part) {
							t.Errorf("%s patched with %s, want %s in it", name, l.patches[name], part)
						}
					}
					if l.pod(name) != nil {
						t.Errorf("%s is still there", name)
					}
				}
				if p := l.patches["done"]; p != "" {
					t.Errorf("a pod that had ended was patched with %s", p)
				}
			})
		})
	}
}

// TestTerminating: pods that are being deleted and that nobody else can finish.
func TestTerminating(t *testing.T) {
	out := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	for _, tc := range []struct {
		name   string
		ready  corev1.ConditionStatus
		taints []corev1.Taint
		want   string
	}{
		{"unreachable", corev1.ConditionUnknown, nil, "free@20s"},
		{"out of service", corev1.ConditionUnknown, []corev1.Taint{out}, "free@20s p@20s"},
		{"out of service, says that it is not ready", corev1.ConditionFalse, []corev1.Taint{out}, "free@20s p@20s"},
		{"out of service by any effect", corev1.ConditionFalse, []corev1.Taint{{Key: out.Key, Effect: corev1.TaintEffectNoSchedule}}, "free@20s p@20s"},
		{"declared so, but ready", corev1.ConditionTrue, []corev1.Taint{out}, "free@20s"},
		{"no condition", "", []corev1.Taint{out}, "free@20s p@20s"},
		{"another taint", corev1.ConditionFalse, []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}}, "free@20s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := machine("n")
				n.Status.Conditions[0].Status = tc.ready
				if tc.ready == "" {
					n.Status.Conditions = nil
				}
				n.Spec.Taints = tc.taints
				free := pod("free", "", corev1.PodPending)
				free.Finalizers = []string{"example.com/wait"} // or deletion would be the end of it
				l := newLab(t, n, pod("p", "n", corev1.PodRunning), pod("stays", "n", corev1.PodRunning), free)
				l.run(Config{})
				l.At(5 * s)
				l.deletePod("p")
				// The server gives a pod without a node no grace; another might.
				grace := int64(30)
				stuck := l.pod("free")
				now := metav1.Now()
				stuck.DeletionTimestamp, stuck.DeletionGracePeriodSeconds = &now, &grace
				l.Must(l.Server.ObjectTracker.Update(corev1.SchemeGroupVersion.WithResource("pods"), stuck, "ns"))
				l.At(5 * time.Minute)
				l.Stop()
				if got := l.Noted().String(); got != tc.want {
					t.Errorf("removed %q, want %q", got, tc.want)
				}
				if p := l.patches["free"]; !strings.Contains(p, `"phase":"Failed"`) || strings.Contains(p, "conditions") {
					t.Errorf("free patched with %s", p)
				}
				if l.pod("stays") == nil || l.patches["stays"] != "" {
					t.Error("a pod that nobody deleted was touched")
				}
			})
		})
	}
}

// TestThreshold is GC1: of eight pods that have ended the three oldest go.
func TestThreshold(t *testing.T) {
	for _, tc := range []struct {
		threshold int
		want      string
	}{
		{5, "evicted@0s p0@0s p1@0s"},
		{7, "evicted@0s"},
		{8, ""},
		{0, ""},
		{-1, ""},
	} {
		t.Run(fmt.Sprint(tc.threshold), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objs := []runtime.Object{machine("n"), pod("runs", "n", corev1.PodRunning), pod("waits", "", corev1.PodPending), pod("lost", "n", corev1.PodUnknown)}
				for i := range 7 {
					p := pod(fmt.Sprintf("p%d", i), "n", []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}[i%2])
					p.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(i-20) * time.Hour))
					objs = append(objs, p)
				}
				evicted := pod("evicted", "n", corev1.PodFailed)
				evicted.Status.Reason = "Evicted"
				l := newLab(t, append(objs, evicted)...)
				reg := l.run(Config{Threshold: tc.threshold})
				l.At(5 * time.Minute)
				l.Stop()
				if got := l.Noted().String(); got != tc.want {
					t.Errorf("removed %q, want %q", got, tc.want)
				}
				if len(l.patches) != 0 {
					t.Errorf("patched %v", l.patches)
				}
				if n := len(strings.Fields(tc.want)); n > 0 {
					want := fmt.Sprintf(`
# HELP pod_gc_collector_force_delete_pods_total Pods that the garbage collector set out to delete by force.
# TYPE pod_gc_collector_force_delete_pods_total counter
pod_gc_collector_force_delete_pods_total{namespace="ns",reason="terminated"} %d
`, n)
					if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// TestFailures: what fails is counted and tried again by the next pass, and an
// outage is told once and costs few requests.
func TestFailures(t *testing.T) {
	refused := apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("no"))
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("another"))
	for _, tc := range []struct {
		name     string
		verb     string // of what fails; empty means everything
		err      error
		errs     int // counted as errors
		warnings int
		tries    int // requests that failed
	}{
		{"patch refused", "patch", refused, 60, 3, 60},
		{"delete refused", "delete", refused, 60, 3, 60},
		{"somebody was faster", "patch", apierrors.NewNotFound(corev1.Resource("pods"), "p"), 0, 0, 60},
		{"another pod by now", "delete", conflict, 0, 0, 60},
		{"server away", "", io.EOF, 0, 1, 3},
		{"server away from the middle of each pass", "patch", io.EOF, 3, 3, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var objs []runtime.Object
				for i := range 20 {
					objs = append(objs, pod(fmt.Sprintf("p%d", i), "n", corev1.PodRunning))
				}
				l := newLab(t, objs...)
				tries := 0
				l.Failing(func(verb, resource, _ string) error {
					if tc.verb == "" || verb == tc.verb && resource == "pods" {
						tries++
						return tc.err
					}
					return nil
				})
				reg := l.run(Config{Workers: 1})
				l.At(90 * s) // passes at 40, 60 and 80
				l.Failing(nil)
				if tries != tc.tries {
					t.Errorf("%d requests failed, want %d", tries, tc.tries)
				}
				l.At(110 * s)
				l.Stop()
				if got := len(l.Noted()); got != 20 {
					t.Errorf("%d pods removed in the end, want 20", got)
				}
				if got := strings.Count(l.Said.String(), "level=WARN"); got != tc.warnings {
					t.Errorf("%d warnings, want %d:\n%s", got, tc.warnings, l.Said)
				}
				want := ""
				if tc.errs > 0 {
					want = fmt.Sprintf(`
# HELP pod_gc_collector_force_delete_pod_errors_total Pods that the garbage collector failed to delete.
# TYPE pod_gc_collector_force_delete_pod_errors_total counter
pod_gc_collector_force_delete_pod_errors_total{namespace="ns",reason="orphaned"} %d
`, tc.errs)
				}
				if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "pod_gc_collector_force_delete_pod_errors_total"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestFinalizers: a pod that only waits for its finalizers is not deleted again.
func TestFinalizers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pod("p", "n", corev1.PodRunning)
		p.Finalizers = []string{"example.com/wait"}
		l := newLab(t, p)
		reg := l.run(Config{})
		l.At(5 * time.Minute)
		l.Stop()
		if got, want := l.Noted().String(), "p@40s"; got != want {
			t.Errorf("removed %q, want %q", got, want)
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP pod_gc_collector_force_delete_pods_total Pods that the garbage collector set out to delete by force.
# TYPE pod_gc_collector_force_delete_pods_total counter
pod_gc_collector_force_delete_pods_total{namespace="ns",reason="orphaned"} 1
`)); err != nil {
			t.Error(err)
		}
		if got := l.pod("p"); got == nil || got.Status.Phase != corev1.PodFailed {
			t.Errorf("it is %v, want there and failed", got)
		}
	})
}

// TestOutageIsToldOnce: a pod that is left to its finalizers says nothing of whether the API
// server answers.
func TestOutageIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now, zero := metav1.Now(), int64(0)
		terminating := pod("p", "", corev1.PodRunning)
		terminating.DeletionTimestamp, terminating.Finalizers = &now, []string{"example.com/wait"}
		objs := []runtime.Object{terminating}
		for i := range 20 {
			p := pod(fmt.Sprintf("left%d", i), "", corev1.PodFailed)
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Finalizers = &now, &zero, []string{"example.com/wait"}
			objs = append(objs, p)
		}
		l := newLab(t, objs...)
		tries := 0
		l.Failing(func(verb, resource, _ string) error {
			if resource != "pods" || verb != "patch" && verb != "delete" {
				return nil
			}
			tries++
			return io.EOF
		})
		l.run(Config{Workers: 1})
		l.At(3 * time.Minute)
		l.Failing(nil)
		l.At(4 * time.Minute)
		l.Stop()
		if n := strings.Count(l.Said.String(), "level=WARN"); tries < 5 || n != 1 {
			t.Errorf("of %d failures %d warnings", tries, n)
		}
		if n := strings.Count(l.Said.String(), "answers again"); n != 1 {
			t.Errorf("said %d times that it is over:\n%s", n, l.Said)
		}
	})
}

// TestStop: Run ends in the midst of its work, and a period of its own is kept.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, pod("p", "n", corev1.PodRunning))
		l.run(Config{Period: s, Quarantine: 3 * s, Workers: 3})
		l.At(10 * s)
		l.Stop()
		if got, want := l.Noted().String(), "p@3s"; got != want {
			t.Errorf("removed %q, want %q", got, want)
		}
		f := informers.NewSharedInformerFactory(l.Client, 0) // not started: its caches never fill
		c, err := New(loop.Deps{Client: l.Client, Informers: f}, Config{})
		l.Must(err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestSharedMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	for range 2 {
		m, err := newMetrics(reg)
		if err != nil {
			t.Fatal(err)
		}
		m.removed("ns", reasonOrphaned, io.EOF)
	}
	m, err := newMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := testutil.ToFloat64(m.pods), testutil.ToFloat64(m.errs); a != 2 || b != 2 {
		t.Errorf("counted %v and %v, want 2 and 2", a, b)
	}
	odd := prometheus.NewRegistry()
	odd.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "pod_gc_collector_force_delete_pods_total"}))
	if _, err := newMetrics(odd); err == nil {
		t.Error("took a gauge for its counter")
	}
}
