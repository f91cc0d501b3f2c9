package pods

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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

// TestCacheServesWhileOffline restarts a container whose environment comes from the
// API when there is none.
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

// TestOrphansAreStopped has the runtime hold a pod of which nothing else is known.
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

// TestLostContainers has the runtime forget what an earlier run of the agent ran.
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

func TestHooksAndProbes(t *testing.T) {
	var healthy, ready atomic.Bool
	healthy.Store(true)
	var hooks atomic.Int32
	o := memory.Options{Exec: func(ctx context.Context, _ runtime.Container, argv []string, s runtime.Stdio) (int, error) {
		switch argv[0] {
		case "alive":
			if !healthy.Load() {
				_, _ = s.Err.Write([]byte("not well"))
				return 1, nil
			}
		case "ready":
			if !ready.Load() {
				return 1, nil
			}
		case "slow": // a hook
			hooks.Add(1)
			select {
			case <-time.After(7 * time.Second):
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		case "bad":
			_, _ = s.Out.Write([]byte("no luck"))
			return 7, nil
		}
		return 0, nil
	}}
	exec := func(word string) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{word}}}
	}
	hook := func(word string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{word}}}
	}
	t.Run("probes", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				c := &p.Spec.Containers[0]
				c.StartupProbe = &corev1.Probe{ProbeHandler: exec("alive"), InitialDelaySeconds: 5, PeriodSeconds: 1, FailureThreshold: 3}
				c.LivenessProbe = &corev1.Probe{ProbeHandler: exec("alive"), PeriodSeconds: 10, FailureThreshold: 3, TerminationGracePeriodSeconds: ptr.To[int64](4)}
				c.ReadinessProbe = &corev1.Probe{ProbeHandler: exec("ready"), PeriodSeconds: 5, SuccessThreshold: 2, FailureThreshold: 1}
			}))
			advance(4 * time.Second)
			if cs := w.pod("a").Status.ContainerStatuses[0]; *cs.Started || cs.Ready {
				t.Errorf("status before the startup probe %+v", cs)
			}
			advance(2 * time.Second)
			if cs := w.pod("a").Status.ContainerStatuses[0]; !*cs.Started || cs.Ready {
				t.Errorf("status after the startup probe %+v", cs)
			}
			ready.Store(true)
			advance(11 * time.Second)
			if got := condition(w.pod("a"), corev1.PodReady); got != "True" {
				t.Errorf("Ready is %s", got)
			}
			ready.Store(false)
			advance(6 * time.Second)
			if got := condition(w.pod("a"), corev1.PodReady); got != "False ContainersNotReady" {
				t.Errorf("Ready is %s", got)
			}
			if n := len(w.rt.Calls()); n != 1 {
				t.Errorf("readiness restarted the container: %q", w.rt.Calls())
			}
			healthy.Store(false)
			advance(26 * time.Second)
			w.wantCalls("start a/main#0", "stop a/main#0 4s", "start a/main#1")
			w.wantEvent("a Warning Unhealthy Liveness probe failed: not well")
			w.wantEvent("a Normal Killing Container main failed liveness probe, will be restarted")
			advance(12 * time.Second) // now the startup probe fails three times
			w.wantEvent("a Normal Killing Container main failed startup probe, will be restarted")
			healthy.Store(true)
		})
	})
	t.Run("preStop", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			hooks.Store(0)
			w.create(newPod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: hook("slow")} }))
			advance(time.Second)
			w.remove("a", 30)
			advance(6 * time.Second)
			w.wantCalls("start a/main#0")
			advance(2 * time.Second)
			w.wantCalls("start a/main#0", "stop a/main#0 23s", "remove a/main#0")
			if hooks.Load() != 1 {
				t.Errorf("hook ran %d times", hooks.Load())
			}
		})
	})
	t.Run("preStop takes too long", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: hook("slow")} }))
			advance(time.Second)
			w.remove("a", 5)
			advance(6 * time.Second)
			w.wantCalls("start a/main#0", "stop a/main#0 2s", "remove a/main#0")
			w.wantEvent("a Warning FailedPreStopHook")
		})
	})
	t.Run("preStop sleep", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}
			}))
			advance(time.Second)
			w.remove("a", 30)
			advance(4 * time.Second)
			w.wantCalls("start a/main#0", "stop a/main#0 27s", "remove a/main#0")
		})
	})
	t.Run("postStart", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook("slow")}
				p.Spec.Containers = append(p.Spec.Containers, container1("second"))
			}))
			advance(5 * time.Second)
			w.wantState("a", "main", "Waiting ContainerCreating")
			w.wantCalls("start a/main#0")
			advance(3 * time.Second)
			w.wantState("a", "main", "Running")
			w.wantState("a", "second", "Running")
		})
	})
	t.Run("postStart fails", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				p.Spec.RestartPolicy = corev1.RestartPolicyNever
				p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook("bad")}
			}))
			advance(time.Second)
			w.wantCalls("start a/main#0", "stop a/main#0 30s")
			w.wantEvent(`a Warning FailedPostStartHook Exec lifecycle hook ([bad]) for Container "main" failed`)
			w.wantPhase("a", corev1.PodSucceeded)
		})
	})
	t.Run("deleted during postStart", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook("slow")} }))
			advance(time.Second)
			w.remove("a", 30)
			advance(time.Second)
			if w.find("default", "a") != nil {
				t.Error("the pod waits for its hook")
			}
		})
	})
}

func TestTerminationMessage(t *testing.T) {
	o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		switch c.Name {
		case "file":
			_ = os.WriteFile(c.TerminationLog, []byte("last words"), 0o600)
		case "logs":
			_ = os.WriteFile(c.LogPath, []byte("2026-01-01T00:00:00.0Z stdout F one\n2026-01-01T00:00:00.0Z stderr P tw\n2026-01-01T00:00:00.0Z stderr F o\nnonsense\n"), 0o600)
		}
		return memory.Behaviour{ExitAfter: time.Second, ExitCode: 1}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers = []corev1.Container{container1("file"), container1("logs"), container1("none")}
			p.Spec.Containers[1].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		}))
		advance(3 * time.Second)
		want := map[string]string{"file": "last words", "logs": "one\ntwo\n", "none": ""}
		for _, cs := range w.pod("a").Status.ContainerStatuses {
			if cs.State.Terminated == nil || cs.State.Terminated.Message != want[cs.Name] {
				t.Errorf("container %s: %+v, want message %q", cs.Name, cs.State.Terminated, want[cs.Name])
			}
		}
	})
}

func TestRefusedPods(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: thisNode, Labels: map[string]string{"disk": "ssd"}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("3"),
		}},
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memory.Options{})
		var known atomic.Pointer[corev1.Node]
		w.cfg.Node = known.Load
		w.start()
		cpu := func(q string) func(p *corev1.Pod) {
			return func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q)}
			}
		}
		w.create(newPod("first", cpu("600m")))
		advance(time.Second)
		w.wantPhase("first", corev1.PodPending) // it is not known yet whether it fits
		known.Store(node)
		w.runner.Wake()
		advance(time.Second)
		w.wantPhase("first", corev1.PodRunning)
		w.create(newPod("second", cpu("600m")))
		w.create(newPod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} }))
		advance(time.Second)
		w.wantPhase("second", corev1.PodFailed)
		if st := w.pod("second").Status; st.Reason != "OutOfcpu" || !strings.Contains(st.Message, "cpu, requested: 600, used: 600, capacity: 1000") {
			t.Errorf("reason %q, message %q", st.Reason, st.Message)
		}
		w.wantEvent("second Warning OutOfcpu Node didn't have enough resource: cpu, requested: 600")
		if got := w.pod("elsewhere").Status.Reason; got != "NodeAffinity" {
			t.Errorf("reason %q", got)
		}
		w.create(newPod("third", cpu("100m")))
		w.create(newPod("fourth", nil))
		w.create(newPod("fifth", nil))
		advance(time.Second)
		if got := w.pod("fifth").Status.Reason; got != "OutOfpods" {
			t.Errorf("reason %q", got)
		}
		w.restart()
		advance(time.Second)
		w.wantPhase("first", corev1.PodRunning)
		w.wantPhase("second", corev1.PodFailed)
		w.remove("second", 30)
		advance(time.Second)
		if w.find("default", "second") != nil {
			t.Error("a refused pod cannot be deleted")
		}
		w.stop()
	})
}

// TestRandomWalk drives pods through a thousand random turns. Whatever happens:
// the runtime is never misused, a pod that has ended stays ended (checkPatch looks
// after that), restart counts never fall, and in the end nothing is left.
func TestRandomWalk(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
			o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
				h := uint(len(c.Name)*7 + c.Attempt*13 + len(c.Pod.Name)) //nolint:gosec // small
				b := memory.Behaviour{TermDelay: time.Duration(h%5) * time.Second, TermCode: int(h % 3)}
				if h%4 == 0 {
					b.ExitAfter, b.ExitCode = time.Duration(1+h%20)*time.Second, int(h%2)
				}
				if h%11 == 0 {
					b.Err = errors.New("cannot")
				}
				return b
			}}
			inWorld(t, o, func(w *world) { walk(w, rnd) })
		})
	}
}

func walk(w *world, rnd *rand.Rand) {
	restarts := map[types.UID]int32{}
	names := []string{"p", "qq", "rrr", "ssss"}
	policies := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}
	for range 250 {
		name := names[rnd.IntN(len(names))]
		p := w.find("default", name)
		switch rnd.IntN(9) {
		case 0, 1:
			if p == nil {
				w.create(newPod(name, func(p *corev1.Pod) {
					if rnd.IntN(2) == 0 {
						withInit("init", "sidecar")(p)
						p.Spec.InitContainers[1].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
					}
					p.Spec.Containers = append(p.Spec.Containers, container1("second"))
					p.Spec.RestartPolicy = policies[rnd.IntN(3)]
				}))
			}
		case 2:
			if p != nil && p.DeletionTimestamp == nil {
				w.remove(name, int64(rnd.IntN(20)))
			}
		case 3:
			if p != nil && rnd.IntN(3) == 0 {
				w.remove(name, -1)
			}
		case 4:
			w.rt.Exit(name, []string{"main", "second", "init", "sidecar"}[rnd.IntN(4)], rnd.IntN(2))
		case 5:
			w.setOffline(rnd.IntN(3) == 0)
		case 6:
			if rnd.IntN(4) == 0 {
				w.restart()
			}
		default:
			advance(time.Duration(rnd.IntN(30_000)) * time.Millisecond)
		}
		for _, name := range names {
			if p := w.find("default", name); p != nil && len(p.Status.ContainerStatuses) > 0 {
				n := p.Status.ContainerStatuses[0].RestartCount
				if n < restarts[p.UID] {
					w.t.Fatalf("restart count of %s fell from %d to %d", name, restarts[p.UID], n)
				}
				restarts[p.UID] = n
			}
		}
	}
	w.setOffline(false)
	for _, name := range names {
		if w.find("default", name) != nil {
			w.remove(name, 1)
		}
	}
	advance(10 * time.Minute)
	for _, name := range names {
		if p := w.find("default", name); p != nil {
			w.t.Errorf("pod %s is left: %+v", name, p.Status)
		}
	}
	if n := len(w.rt.Specs()); n != 0 {
		w.t.Errorf("%d containers are left", n)
	}
	if dirs, err := os.ReadDir(filepath.Join(w.cfg.Dir, "pods")); err != nil || len(dirs) != 0 {
		w.t.Errorf("directories %v, %v; want none", dirs, err)
	}
}
