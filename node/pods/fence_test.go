package pods

// Tests of an agent that another one has replaced.

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/fence"
)

// TestFence: another agent with this node's identity takes over, and leaves.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, slow)
		f := &fence.Fence{}
		w.cfg.Fence = f
		w.start()
		a, b := newPod("a", nil), newPod("b", nil)
		w.create(a)
		w.create(b)
		w.create(newPod("done", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
		w.rt.Exit("done", "main", 0)
		advance(time.Second)
		w.wantRunning("alone", a, b)
		from, patches := len(w.api.Actions()), w.patches
		f.Set(true)
		advance(5 * time.Second)
		w.wantRunning("being stopped", a, b)
		advance(6 * time.Second)
		w.wantRunning("fenced")
		c := newPod("c", nil)
		w.create(c)
		w.remove("b", -1)
		w.update("a", func(p *corev1.Pod) { p.Status.Message = "by another agent" })
		advance(10 * time.Minute)
		w.wantRunning("fenced for long")
		if n := len(w.api.Actions()); n != from || w.patches != patches {
			t.Errorf("%d calls to the API while fenced: %v", n-from, w.api.Actions()[from:])
		}
		f.Set(false)
		advance(time.Minute)
		w.wantRunning("taken back", a, c)
		w.wantPhase("a", corev1.PodRunning)
		w.wantPhase("done", corev1.PodSucceeded)
		if got := w.pod("a").Status.ContainerStatuses[0].RestartCount; got != 1 {
			t.Errorf("restart count %d, want 1", got)
		}
		if got := w.deletes(from); len(got) != 0 {
			t.Errorf("deleted %q", got)
		}
		advance(5 * time.Minute)
		if dirs, err := os.ReadDir(w.runner.places.pods()); err != nil || len(dirs) != 3 {
			t.Errorf("directories %v, %v; want those of three pods", dirs, err)
		}
		// The fence goes up and down before the pods have ended.
		f.Set(true)
		advance(time.Second)
		f.Set(false)
		advance(time.Minute)
		w.wantRunning("up and down", a, c)
		w.stop()
		if err := w.rt.Violations(); err != nil {
			t.Errorf("the runtime was misused: %v", err)
		}
	})
}
