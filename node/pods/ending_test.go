package pods

// Tests of how the containers of a pod end.

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

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

// TestShorterGraceDuringHook: a preStop hook has what is left of a grace period that is made
// shorter while it runs.
func TestShorterGraceDuringHook(t *testing.T) {
	for name, tt := range map[string]struct {
		hook    time.Duration
		shorten func(w *world)
		done    int
		want    string
	}{
		"deleted again":          {5 * time.Second, func(w *world) { w.remove("a", 20) }, 1, "stop a/main#0 16s"},
		"shutdown":               {5 * time.Second, func(w *world) { w.shutDown(w.t.Context(), []Phase{{0, 20 * time.Second}}) }, 1, "stop a/main#0 16s"},
		"too short for the hook": {25 * time.Second, func(w *world) { w.remove("a", 20) }, 0, "stop a/main#0 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			done := 0
			o := endingIn(nil)
			o.Exec = func(ctx context.Context, _ runtime.Container, _ []string, _ runtime.Stdio) (int, error) {
				select {
				case <-time.After(tt.hook):
					done++
					return 0, nil
				case <-ctx.Done():
					return 0, context.Cause(ctx)
				}
			}
			inWorld(t, o, func(w *world) {
				w.create(newPod("a", func(p *corev1.Pod) {
					p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
					execHook(&p.Spec.Containers[0])
				}))
				advance(time.Second)
				w.remove("a", 30)
				advance(time.Second)
				tt.shorten(w)
				advance(3 * time.Second)
				w.wantStops()
				advance(20 * time.Second)
				w.wantStops(tt.want)
				if done != tt.done {
					t.Errorf("%d hooks were completed, want %d", done, tt.done)
				}
				if events := w.saw("FailedPreStopHook"); events != 1-tt.done {
					t.Errorf("%d events of a failed hook, want %d", events, 1-tt.done)
				}
			})
		})
	}
}

// TestSidecarsAfterAbsence: sidecars have their whole grace period where the agent was away, or
// could not list containers, when the last main container ended.
func TestSidecarsAfterAbsence(t *testing.T) {
	o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		if c.Name == "main" {
			return memory.Behaviour{ExitAfter: 2 * time.Second}
		}
		return memory.Behaviour{TermDelay: 10 * time.Second}
	}}
	pod := func(p *corev1.Pod) {
		sidecars(30, "s1")(p)
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	t.Run("agent", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", pod))
			advance(time.Second)
			w.stop()
			advance(30 * time.Second)
			w.start()
			advance(20 * time.Second)
			w.wantStops("stop a/s1#0 30s")
			w.wantState("a", "s1", "Terminated Completed 0")
			w.wantPhase("a", corev1.PodSucceeded)
		})
	})
	t.Run("list", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			a := w.awkward(Retention{}, func(*awkward, string) error { return nil })
			w.create(newPod("a", pod))
			advance(time.Second)
			broken := errors.New("runtime is broken")
			a.list.Store(&broken)
			advance(29 * time.Second)
			a.list.Store(nil)
			advance(40 * time.Second)
			w.wantState("a", "s1", "Terminated Completed 0")
			w.wantPhase("a", corev1.PodSucceeded)
		})
	})
}

// TestSidecarsDoNotWaitForDebuggers: as in the kubelet, sidecars wait for main containers alone.
func TestSidecarsDoNotWaitForDebuggers(t *testing.T) {
	o := endingIn(map[string]time.Duration{"main": 5 * time.Second, "s1": 5 * time.Second, "debug": time.Hour})
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			sidecars(30, "s1")(p)
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(container1("debug"))}}
		}))
		advance(time.Second)
		w.remove("a", 30)
		advance(40 * time.Second)
		got := w.stops()
		slices.Sort(got) // the first two are at the same time
		if want := []string{"stop a/debug#0 30s", "stop a/main#0 30s", "stop a/s1#0 25s"}; !slices.Equal(got, want) {
			t.Errorf("stops %q, want %q", got, want)
		}
	})
}
