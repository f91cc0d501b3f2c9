package children

// Tests of what states pods are in and which is missed least. Claiming, making
// and deleting is tested through the controllers that do it.

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// pod returns a running, ready pod on node n, an hour old, changed by edits.
func pod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))},
		}},
	}
	for _, e := range edits {
		e(p)
	}
	return p
}

func phase(ph corev1.PodPhase) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.Phase = ph } }

func unready(p *corev1.Pod)            { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func unbound(p *corev1.Pod)            { p.Spec.NodeName = "" }
func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func cost(c string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: c} }
}

func readyFor(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-d)) }
}

func born(ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
}

func restarted(n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: n}}
	}
}

func sidecar(n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}, {Name: "i"}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", RestartCount: 100}, {Name: "s", RestartCount: n}}
	}
}

// TestByWorth: of each pair the first is missed less, whatever order they come
// in.
func TestByWorth(t *testing.T) {
	company := func(node string) int { return map[string]int{"n": 1, "full": 3}[node] }
	for _, tc := range []struct {
		name         string
		first, other []func(*corev1.Pod)
	}{
		{"on no node", []func(*corev1.Pod){unbound}, []func(*corev1.Pod){unready, phase("Pending")}},
		{"pending", []func(*corev1.Pod){phase("Pending"), cost("100")}, []func(*corev1.Pod){unready}},
		{"unknown", []func(*corev1.Pod){phase("Unknown")}, []func(*corev1.Pod){unready}},
		{"pending before unknown", []func(*corev1.Pod){phase("Pending")}, []func(*corev1.Pod){phase("Unknown")}},
		{"not ready", []func(*corev1.Pod){unready, cost("100")}, nil},
		{"cheap", []func(*corev1.Pod){cost("-1")}, []func(*corev1.Pod){on("full")}},
		{"cost that is no number", []func(*corev1.Pod){cost("x"), on("full")}, []func(*corev1.Pod){cost("0")}},
		{"in company", []func(*corev1.Pod){on("full")}, []func(*corev1.Pod){readyFor(time.Minute)}},
		{"ready for a shorter time", []func(*corev1.Pod){readyFor(time.Minute)}, []func(*corev1.Pod){restarted(9)}},
		{"ready for longer than it has been there", []func(*corev1.Pod){readyFor(1e5 * time.Hour), born(time.Minute)}, []func(*corev1.Pod){restarted(9)}},
		{"restarted", []func(*corev1.Pod){restarted(2)}, []func(*corev1.Pod){restarted(1), sidecar(5)}},
		{"sidecar restarted", []func(*corev1.Pod){sidecar(2), readyFor(time.Minute)}, []func(*corev1.Pod){sidecar(1), born(time.Minute)}},
		{"younger", []func(*corev1.Pod){born(time.Minute)}, []func(*corev1.Pod){readyFor(time.Minute)}},
		{"just ready", []func(*corev1.Pod){readyFor(0)}, []func(*corev1.Pod){readyFor(time.Second)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// The uids speak for the other one.
			a, b := pod("b", tc.first...), pod("a", tc.other...)
			for _, pods := range [][]*corev1.Pod{{a, b}, {b, a}} {
				ByWorth(pods, company, now)
				if pods[0] != a {
					t.Errorf("the other one comes first")
				}
			}
		})
	}
	t.Run("of about the same age", func(t *testing.T) {
		// 40 and 70 minutes are of one magnitude: the uid decides.
		pods := []*corev1.Pod{pod("b", born(40*time.Minute)), pod("a", born(70*time.Minute))}
		ByWorth(pods, company, now)
		if pods[0].Name != "a" {
			t.Error("the younger one always loses")
		}
	})
}

// TestByWorthIsAnOrder: the outcome does not depend on what order pods come in.
func TestByWorthIsAnOrder(t *testing.T) {
	edits := []func(*corev1.Pod){unready, unbound, phase("Pending"), on("full"), cost("3"), readyFor(50 * time.Minute), readyFor(20 * time.Minute), restarted(3), sidecar(3), born(30 * time.Minute), born(45 * time.Minute)}
	var pods []*corev1.Pod
	for i := range edits {
		for j := range edits {
			pods = append(pods, pod(fmt.Sprintf("%d-%d", i, j), edits[i], edits[j]))
		}
	}
	names := func(pods []*corev1.Pod) (out []string) {
		for _, p := range pods {
			out = append(out, p.Name)
		}
		return out
	}
	company := func(node string) int { return len(node) }
	ByWorth(pods, company, now)
	want := names(pods)
	for shift := 1; shift < len(pods); shift += 7 {
		again := append(slices.Clone(pods[shift:]), pods[:shift]...)
		slices.Reverse(again)
		ByWorth(again, company, now)
		if got := names(again); !slices.Equal(got, want) {
			t.Fatalf("shifted by %d: %v\nwant %v", shift, got, want)
		}
	}
}

func TestStates(t *testing.T) {
	gone := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }
	for _, tc := range []struct {
		name                       string
		pod                        *corev1.Pod
		active, terminating, ended bool
	}{
		{"running", pod("p"), true, false, false},
		{"pending", pod("p", phase("Pending")), true, false, false},
		{"no phase", pod("p", phase("")), true, false, false},
		{"being deleted", pod("p", gone), false, true, false},
		{"failed", pod("p", phase("Failed")), false, false, true},
		{"succeeded and being deleted", pod("p", phase("Succeeded"), gone), false, false, true},
	} {
		if a, x, e := Active(tc.pod), Terminating(tc.pod), Ended(tc.pod); a != tc.active || x != tc.terminating || e != tc.ended {
			t.Errorf("%s: active %v terminating %v ended %v", tc.name, a, x, e)
		}
	}
}

// TestEndedAt: a node says when a pod of it ended; a time that cannot be does not count.
func TestEndedAt(t *testing.T) {
	finished := func(ago ...time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, d := range ago {
				end := &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(now.Add(-d))}
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{State: corev1.ContainerState{Terminated: end}})
			}
		}
	}
	deleted := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(20 * time.Second)}, ptr.To[int64](30)
	}
	undated := func(p *corev1.Pod) { p.CreationTimestamp = metav1.Time{} }
	const later = -230 * 365 * 24 * time.Hour
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		ago  time.Duration
	}{
		{"the last container", pod("p", finished(time.Minute, 10*time.Second)), 10 * time.Second},
		{"just now", pod("p", finished(0)), 0},
		{"later", pod("p", finished(later)), time.Hour},
		{"one of two later", pod("p", finished(time.Minute, later)), time.Minute},
		{"later, and being deleted", pod("p", finished(-time.Second), deleted), 10 * time.Second},
		{"before it was made", pod("p", finished(2*time.Hour)), time.Hour},
		{"when it was told to", pod("p", deleted), 10 * time.Second},
		{"when it was no longer ready", pod("p", unready, readyFor(time.Minute)), time.Minute},
		{"no longer ready later", pod("p", unready, readyFor(later)), time.Hour},
		{"nothing said", pod("p"), time.Hour},
		{"nothing known", pod("p", undated), 0},
	} {
		if got := now.Sub(EndedAt(tc.pod, now)); got != tc.ago {
			t.Errorf("%s: %v ago, want %v", tc.name, got, tc.ago)
		}
	}
}

func TestAvailable(t *testing.T) {
	undated := func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.Time{} }
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		long time.Duration
		ok   bool
		in   time.Duration
	}{
		{"at once", pod("p", readyFor(0)), 0, true, 0},
		{"not ready", pod("p", unready), 0, false, 0},
		{"not ready, with a time", pod("p", unready), time.Second, false, 0},
		{"not yet", pod("p", readyFor(20*time.Second)), 30 * time.Second, false, 10 * time.Second},
		{"on the dot", pod("p", readyFor(30*time.Second)), 30 * time.Second, true, 0},
		{"undated", pod("p", undated), time.Second, false, 0},
		{"says nothing", pod("p", func(p *corev1.Pod) { p.Status.Conditions = nil }), 0, false, 0},
	} {
		if ok, in := Available(tc.pod, tc.long, now); ok != tc.ok || in != tc.in {
			t.Errorf("%s: %v in %s, want %v in %s", tc.name, ok, in, tc.ok, tc.in)
		}
	}
}

// TestPauseOfAnotherClock: a failure that was timed by a clock that ran ahead holds up nothing; one
// that is ahead by less than a pause, as between machines, does.
func TestPauseOfAnotherClock(t *testing.T) {
	now := time.Now()
	for ahead, want := range map[time.Duration]time.Duration{3 * time.Hour: 0, 2 * time.Second: 42 * time.Second, -time.Hour: 0} {
		if got := (Pause{Failures: 3, Last: now.Add(ahead)}).Left(DefaultMinBackoff, DefaultMaxBackoff, now); got != want {
			t.Errorf("a failure %v ahead: %v left, want %v", ahead, got, want)
		}
	}
}
