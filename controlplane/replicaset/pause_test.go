package replicaset

// Tests of the pause before pods that fail at once are made again, in fake time.

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/children"
)

// fail has all active pods end.
func (w *world) fail() {
	w.Helper()
	for _, p := range w.active() {
		p.Status.Phase = corev1.PodFailed
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}
		if _, err := w.client.CoreV1().Pods("ns").UpdateStatus(w.ctx, p, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
	}
	synctest.Wait()
}

// failing has pods fail as soon as they are made, for d, and returns when some were.
func (w *world) failing(d time.Duration) []string {
	var at []string
	began, last := time.Now(), w.creates()
	for time.Since(began) < d {
		w.fail()
		if n := w.creates(); n != last {
			at = append(at, fmt.Sprintf("%d@%v", n-last, time.Since(began)))
			last = n
			continue
		}
		<-time.After(time.Second)
		synctest.Wait()
	}
	return at
}

// TestPause: the first that fail are replaced at once, then after 10 s, 20 s, 40 s and
// so on up to the bound, all of them together; one that does well ends that, and so
// does a change.
func TestPause(t *testing.T) {
	run(t, func(w *world) {
		want := []string{"3@0s", "3@10s", "3@30s", "3@1m10s", "3@2m30s", "3@5m10s", "3@10m30s", "3@16m30s", "3@22m30s"}
		if got := w.failing(23 * time.Minute); !slices.Equal(got, want) {
			t.Errorf("made %v, want %v", got, want)
		}
		w.settle(6 * time.Minute)
		pods := w.active()
		if len(pods) != 3 {
			t.Fatalf("%d pods", len(pods))
		}
		for _, p := range pods {
			w.ready(p, "n")
		}
		w.settle(time.Minute)
		if got, want := w.failing(15*time.Second), []string{"3@0s", "3@10s"}; !slices.Equal(got, want) {
			t.Errorf("after they were ready: made %v, want %v", got, want)
		}
		w.fail()
		before := w.creates()
		w.scale(4)
		if n := w.creates() - before; n != 4 {
			t.Errorf("after a change %d were made, want 4", n)
		}
	}, set(3))
}

// TestPauseForOne: a pod that fails long after the others were made is replaced at
// once, and so is the next of them.
func TestPauseForOne(t *testing.T) {
	run(t, func(w *world) {
		for _, p := range w.active() {
			w.ready(p, "n")
		}
		for range 3 {
			w.settle(time.Minute)
			pods := w.active()
			slices.SortFunc(pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
			p := pods[0]
			p.Status.Phase = corev1.PodFailed
			if _, err := w.client.CoreV1().Pods("ns").UpdateStatus(w.ctx, p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.settle(0)
			if n := len(w.active()); n != 3 {
				t.Errorf("%d pods, want 3", n)
			}
		}
	}, set(3))
}

// TestPauseAfterClockWasSetBack: pods that fail go on being replaced with pauses, and one that is
// ready ends them.
func TestPauseAfterClockWasSetBack(t *testing.T) {
	now := time.Now()
	p := &pause{Pause: children.Pause{Failures: 3, Last: now.Add(3 * time.Hour)}}
	p.note(nil, now)
	if left := p.Left(10*time.Second, 6*time.Minute, now); left != 40*time.Second {
		t.Errorf("%v left", left)
	}
}
