package pods

// Tests of agents that restart, go offline, or whose runtime has lost containers.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/fence"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

func TestRestartOfTheAgentLeavesPodsAlone(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}, PeriodSeconds: 3600,
			}
		}))
		w.create(newPod("b", withInit("i1")))
		advance(time.Second)
		w.rt.Exit("b", "i1", 0)
		w.rt.Exit("a", "main", 1)
		advance(time.Second)
		calls := w.rt.Calls()
		patches := w.patches
		w.restart()
		advance(time.Minute)
		if got := w.rt.Calls(); !slices.Equal(got, calls) {
			t.Errorf("after the restart the runtime was asked %q more", got[len(calls):])
		}
		if w.patches != patches {
			t.Errorf("%d writes because of a restart", w.patches-patches)
		}
		if got := w.pod("a").Status.ContainerStatuses[0]; got.RestartCount != 1 || !got.Ready {
			t.Errorf("status %+v", got)
		}
		w.rt.Exit("a", "main", 1)
		advance(time.Second)
		if got := w.pod("a").Status.ContainerStatuses[0].RestartCount; got != 2 {
			t.Errorf("restart count %d, want 2", got)
		}
	})
}

// TestRecalled: once Recalled is closed, a Runner finds the pods of an earlier run, also
// without the API. It is also closed if there are none, or another agent has them.
func TestRecalled(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		<-w.runner.Recalled() // none
		w.create(newPod("a", nil))
		advance(time.Second)
		w.stop()
		w.setOffline(true)
		r, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		find := func() error {
			_, err := r.Pod(t.Context(), types.NamespacedName{Namespace: "default", Name: "a"}, "")
			return err
		}
		select {
		case <-r.Recalled():
			t.Error("recalled before it runs")
		default:
		}
		if !errors.Is(find(), runtime.ErrNotFound) {
			t.Error("found before it runs")
		}
		w.runner = r
		w.run()
		<-r.Recalled()
		if err := find(); err != nil {
			t.Error(err)
		}
	})
	inWorld(t, memory.Options{}, func(w *world) {
		w.cfg.Fence = &fence.Fence{}
		w.cfg.Fence.Set(true)
		w.restart()
		<-w.runner.Recalled()
	})
}

func TestOfflineNodeKeepsItsPods(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"KEY": "value"}}
		if err := w.api.Tracker().Add(cm); err != nil {
			t.Fatal(err)
		}
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
		}))
		w.create(newPod("b", nil))
		advance(time.Second)
		w.stop()
		w.setOffline(true)
		w.start()
		advance(10 * time.Minute)
		w.wantCalls("start a/main#0", "start b/main#0")
		// A container that ends is started again without a server.
		w.rt.Exit("b", "main", 1)
		advance(time.Second)
		if n := len(w.rt.Calls()); n != 3 {
			t.Errorf("%d calls, want a restart: %q", n, w.rt.Calls())
		}
		if p, err := w.runner.Pod(t.Context(), types.NamespacedName{Namespace: "default", Name: "b"}, ""); err != nil || p.Status.ContainerStatuses[0].RestartCount != 1 {
			t.Errorf("pod %+v, %v", p, err)
		}
		w.setOffline(false)
		advance(2 * time.Minute)
		if got := w.pod("b").Status.ContainerStatuses[0].RestartCount; got != 1 {
			t.Errorf("restart count in the API %d, want 1", got)
		}
	})
}

// TestCacheServesWhileOffline restarts a container with an environment from the API while the
// API is unreachable.
func TestCacheServesWhileOffline(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"KEY": "value"}}
		if err := w.api.Tracker().Add(cm); err != nil {
			t.Fatal(err)
		}
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
		}))
		advance(5 * time.Minute)
		w.setOffline(true)
		w.rt.Exit("a", "main", 1)
		advance(time.Second)
		w.wantCalls("start a/main#0", "start a/main#1")
		w.setOffline(false)
		advance(time.Minute)
		w.wantState("a", "main", "Running")
	})
}

func TestDeletedWhileOffline(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", nil))
		w.create(newPod("b", nil))
		advance(time.Second)
		w.stop()
		w.remove("a", -1)
		w.remove("b", 30)
		w.start()
		advance(5 * time.Second)
		if n := len(w.rt.Specs()); n != 0 {
			t.Errorf("%d containers are left", n)
		}
		if w.find("default", "b") != nil {
			t.Error("pod b is still there")
		}
		if dirs, err := os.ReadDir(filepath.Join(w.cfg.Dir, "pods")); err != nil || len(dirs) != 0 {
			t.Errorf("directories %v, %v; want none", dirs, err)
		}
	})
}

// TestOrphansAreStopped: the runtime has a pod that is not known otherwise.
func TestOrphansAreStopped(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", nil))
		advance(time.Second)
		w.stop()
		uid := w.pod("a").UID
		w.remove("a", -1)
		if err := os.RemoveAll(filepath.Join(w.cfg.Dir, "pods")); err != nil {
			t.Fatal(err)
		}
		stray := filepath.Join(w.cfg.Dir, "pods", "gone-1", "volumes", "v")
		if err := os.MkdirAll(stray, 0o755); err != nil {
			t.Fatal(err)
		}
		w.setOffline(true)
		w.start()
		advance(time.Hour)
		if n := len(w.rt.Specs()); n != 1 {
			t.Errorf("%d containers, want 1: nothing may be stopped without having asked the server", n)
		}
		w.setOffline(false)
		advance(5 * time.Minute)
		if n := len(w.rt.Specs()); n != 0 {
			t.Errorf("%d containers are left of pod %s", n, uid)
		}
		if _, err := os.Stat(stray); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("stray directory: %v, want none", err)
		}
	})
}

// TestLostContainers: the runtime has lost the containers of an earlier run of the agent.
func TestLostContainers(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", nil))
		w.create(newPod("b", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
		advance(time.Second)
		w.stop()
		w.rt = memory.New(memory.Options{})
		w.cfg.Runtime = w.rt
		w.start()
		advance(time.Second)
		w.wantState("a", "main", "Running")
		cs := w.pod("a").Status.ContainerStatuses[0]
		if cs.RestartCount != 1 || stateOf(cs.LastTerminationState) != "Terminated ContainerStatusUnknown 137" {
			t.Errorf("status %+v", cs)
		}
		w.wantPhase("b", corev1.PodFailed)
		w.wantState("b", "main", "Terminated ContainerStatusUnknown 137")
	})
}

// A pod that left the API at once, while none of its containers ran, is not run again by an agent
// that starts without a server, also if the removal of what it had was not finished.
func TestGoneWhileQuiet(t *testing.T) {
	inWorld(t, exits(time.Second, map[string]int{"main": 1}), func(w *world) {
		w.cfg.Runtime = stuck{w.rt}
		w.create(newPod("a", nil))
		advance(2 * time.Minute) // it waits to be started once more
		w.restart()
		advance(5 * time.Second)
		w.remove("a", -1)
		advance(time.Second)
		w.stop()
		before := w.rt.Calls()
		w.setOffline(true)
		w.start()
		advance(10 * time.Minute)
		w.wantCalls(before...)
	})
}

// stuck is a runtime that removes no container.
type stuck struct{ *memory.Runtime }

func (stuck) Remove(context.Context, string) error { return errors.New("busy") }

// Pods whose volumes are gone with their containers begin with their init containers again.
func TestLostInitContainers(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			withInit("i1")(p)
			p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		}))
		advance(time.Second)
		w.rt.Exit("a", "i1", 0)
		advance(time.Second)
		w.wantState("a", "main", "Running")
		w.stop()
		w.rt = memory.New(memory.Options{})
		w.cfg.Runtime = w.rt
		w.start()
		advance(time.Second)
		w.wantCalls("start a/i1#1")
		w.restart() // in vain: it is begun again once
		advance(time.Second)
		w.rt.Exit("a", "i1", 0)
		advance(time.Second)
		w.wantCalls("start a/i1#1", "start a/main#1")
		w.wantPhase("a", corev1.PodRunning)
	})
}

// TestRestartBeforeReplacement: a container that ended with 0 to be replaced by another attempt is
// replaced by the next run of the agent.
func TestRestartBeforeReplacement(t *testing.T) {
	for name, tt := range map[string]struct {
		policy corev1.RestartPolicy
		end    func(w *world)
	}{
		"probe": {corev1.RestartPolicyOnFailure, func(w *world) {
			for range 200 {
				if advance(time.Second); state(w.pod("a"), "main") == "Waiting CrashLoopBackOff" {
					return
				}
			}
			w.t.Fatal("it was not backed off")
		}},
		"image": {corev1.RestartPolicyNever, func(w *world) {
			for _, image := range []string{"busybox:2", "busybox:3"} { // the second is backed off
				advance(time.Second)
				w.update("a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = image })
			}
			advance(time.Second)
			w.wantState("a", "main", "Waiting CrashLoopBackOff")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o := memory.Options{Exec: func(context.Context, runtime.Container, []string, runtime.Stdio) (int, error) { return 1, nil }}
			inWorld(t, o, func(w *world) {
				w.create(newPod("a", func(p *corev1.Pod) {
					p.Spec.RestartPolicy = tt.policy
					if name == "probe" {
						p.Spec.Containers[0].LivenessProbe = &corev1.Probe{
							ProbeHandler:        corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}},
							InitialDelaySeconds: 2, FailureThreshold: 1,
						}
					}
				}))
				tt.end(w)
				before := len(w.rt.Calls())
				w.restart()
				advance(10 * time.Minute)
				w.wantPhase("a", corev1.PodRunning)
				if after := len(w.rt.Calls()); after == before {
					t.Errorf("it was not started again: %q", w.rt.Calls())
				}
			})
		})
	}
}

// TestReplacedNotBegunAfterReboot: a pod whose restart policy is Never ends with the machine, also
// if a container was to be replaced: what its init containers prepared in memory is gone.
func TestReplacedNotBegunAfterReboot(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", withInit("i1")))
		advance(time.Second)
		w.rt.Exit("a", "i1", 0)
		for _, image := range []string{"busybox:2", "busybox:3"} { // the second is backed off
			advance(time.Second)
			w.update("a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = image })
		}
		advance(time.Second)
		w.wantState("a", "main", "Waiting CrashLoopBackOff")
		w.stop()
		w.rt.Reboot()
		w.start()
		advance(10 * time.Minute)
		if calls := w.rt.Calls(); slices.Contains(calls, "start a/main#2") {
			t.Errorf("it was started again: %q", calls)
		}
		if p := w.pod("a").Status.Phase; p != corev1.PodFailed && p != corev1.PodSucceeded {
			t.Errorf("phase %s", p)
		}
	})
}
