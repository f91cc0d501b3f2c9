package pods

// Tests of how the containers of a pod end.

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// endingIn makes containers that end so long after SIGTERM, by name.
func endingIn(delays map[string]time.Duration) memory.Options {
	return memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		return memory.Behaviour{TermDelay: delays[c.Name]}
	}}
}

// execHook gives a container of the pod an exec hook before it is stopped.
func execHook(c *corev1.Container) {
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"bye"}}}}
}

// TestSidecarEndsBeforeItsTurn: a sidecar that has ended by itself does not hold its pod.
func TestSidecarEndsBeforeItsTurn(t *testing.T) {
	t.Run("deleted", func(t *testing.T) {
		inWorld(t, endingIn(map[string]time.Duration{"main": 5 * time.Second}), func(w *world) {
			w.create(newPod("a", sidecars(600, "s1")))
			advance(time.Second)
			w.remove("a", 600)
			advance(time.Second)
			w.rt.Exit("a", "s1", 0)
			advance(10 * time.Second)
			if p := w.find("default", "a"); p != nil {
				t.Errorf("the pod is still there, in phase %s", p.Status.Phase)
			}
		})
	})
	t.Run("finished", func(t *testing.T) {
		o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
			if c.Name == "main" {
				return memory.Behaviour{ExitAfter: 2 * time.Second}
			}
			return memory.Behaviour{TermDelay: 3 * time.Second}
		}}
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				sidecars(600, "s1", "s2")(p)
				p.Spec.RestartPolicy = corev1.RestartPolicyNever
			}))
			advance(3 * time.Second)
			w.rt.Exit("a", "s1", 0)
			advance(10 * time.Second)
			w.wantPhase("a", corev1.PodSucceeded)
		})
	})
	t.Run("by its hook", func(t *testing.T) {
		var end func()
		o := endingIn(map[string]time.Duration{"main": 5 * time.Second})
		o.Exec = func(context.Context, runtime.Container, []string, runtime.Stdio) (int, error) { end(); return 0, nil }
		inWorld(t, o, func(w *world) {
			end = func() { w.rt.Exit("a", "s1", 0) }
			w.create(newPod("a", func(p *corev1.Pod) {
				sidecars(600, "s1")(p)
				execHook(&p.Spec.InitContainers[0])
			}))
			advance(time.Second)
			w.remove("a", 600)
			advance(10 * time.Second)
			if p := w.find("default", "a"); p != nil {
				t.Errorf("the pod is still there, in phase %s", p.Status.Phase)
			}
		})
	})
}
