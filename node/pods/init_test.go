package pods

// Tests of init containers and sidecars.

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

func withInit(names ...string) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		for _, n := range names {
			p.Spec.InitContainers = append(p.Spec.InitContainers, container1(n))
		}
	}
}

func TestInitContainersRunInOrder(t *testing.T) {
	inWorld(t, exits(10*time.Second, map[string]int{"i1": 0, "i2": 0}), func(w *world) {
		w.create(newPod("a", withInit("i1", "i2")))
		advance(time.Second)
		w.wantState("a", "i1", "Running")
		w.wantState("a", "i2", "Waiting PodInitializing")
		w.wantState("a", "main", "Waiting PodInitializing")
		w.wantPhase("a", corev1.PodPending)
		if got := condition(w.pod("a"), corev1.PodInitialized); got != "False ContainersNotInitialized" {
			t.Errorf("Initialized is %s", got)
		}
		if got := conditionOf(w.pod("a").Status.Conditions, corev1.PodInitialized).Message; got != "containers with incomplete status: [i1 i2]" {
			t.Errorf("message %q", got)
		}
		advance(10 * time.Second)
		w.wantState("a", "i1", "Terminated Completed 0")
		w.wantState("a", "i2", "Running")
		advance(10 * time.Second)
		w.wantPhase("a", corev1.PodRunning)
		w.wantCalls("start a/i1#0", "start a/i2#0", "start a/main#0")
	})
}

func TestInitContainerThatFails(t *testing.T) {
	for policy, want := range map[corev1.RestartPolicy]struct {
		phase corev1.PodPhase
		state string
	}{
		corev1.RestartPolicyNever:     {corev1.PodFailed, "Terminated Error 1"},
		corev1.RestartPolicyAlways:    {corev1.PodPending, "Waiting CrashLoopBackOff"},
		corev1.RestartPolicyOnFailure: {corev1.PodPending, "Waiting CrashLoopBackOff"},
	} {
		t.Run(string(policy), func(t *testing.T) {
			inWorld(t, exits(time.Second, map[string]int{"i1": 1}), func(w *world) {
				w.create(newPod("a", func(p *corev1.Pod) {
					withInit("i1")(p)
					p.Spec.RestartPolicy = policy
				}))
				advance(5 * time.Second)
				w.wantPhase("a", want.phase)
				w.wantState("a", "i1", want.state)
				w.wantState("a", "main", "Waiting PodInitializing")
			})
		})
	}
}

// TestInitContainerThatFailsBesideSidecar: the sidecar is stopped for good, and the pod has failed.
func TestInitContainerThatFailsBesideSidecar(t *testing.T) {
	inWorld(t, exits(time.Second, map[string]int{"i1": 1}), func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			withInit("s1", "i1")(p)
			always := corev1.ContainerRestartPolicyAlways
			p.Spec.InitContainers[0].RestartPolicy = &always
		}))
		advance(5 * time.Minute)
		w.wantPhase("a", corev1.PodFailed)
		w.wantState("a", "i1", "Terminated Error 1")
		w.wantCalls("start a/s1#0", "start a/i1#0", "stop a/s1#0 30s")
	})
}

func TestSidecars(t *testing.T) {
	inWorld(t, exits(30*time.Second, map[string]int{"main": 0}), func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			withInit("s1", "i1", "s2")(p)
			always := corev1.ContainerRestartPolicyAlways
			p.Spec.InitContainers[0].RestartPolicy = &always
			p.Spec.InitContainers[2].RestartPolicy = &always
		}))
		advance(time.Second)
		w.rt.Exit("a", "i1", 0)
		advance(time.Second)
		w.wantPhase("a", corev1.PodRunning)
		w.rt.Exit("a", "s1", 1) // one that ends is started again, whatever the pod's policy
		advance(time.Second)
		w.wantState("a", "s1", "Running")
		advance(30 * time.Second)
		w.wantPhase("a", corev1.PodSucceeded)
		w.wantCalls("start a/s1#0", "start a/i1#0", "start a/s2#0", "start a/main#0", "start a/s1#1",
			"stop a/s2#0 30s", "stop a/s1#1 30s")
	})
}

// TestSidecarDownBeforeMain: a sidecar that was up and goes down holds up neither the main containers
// nor the next attempt of an init container. After a reboot it has to be up once more.
func TestSidecarDownBeforeMain(t *testing.T) {
	var up atomic.Bool
	o := memory.Options{Exec: func(context.Context, runtime.Container, []string, runtime.Stdio) (int, error) {
		if !up.Load() {
			return 1, nil
		}
		return 0, nil
	}}
	withSidecar := func(p *corev1.Pod) {
		sidecars(30, "s1")(p)
		p.Spec.InitContainers = append(p.Spec.InitContainers, container1("i1"))
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	t.Run("back-off", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", withSidecar))
			advance(time.Second)
			for range 2 {
				w.rt.Exit("a", "s1", 1)
				advance(time.Second)
			}
			w.wantState("a", "s1", "Waiting CrashLoopBackOff")
			w.rt.Exit("a", "i1", 1)
			advance(time.Second)
			w.wantState("a", "i1", "Running")
			w.rt.Exit("a", "i1", 0)
			advance(time.Second)
			w.wantState("a", "s1", "Waiting CrashLoopBackOff")
			w.wantState("a", "main", "Running")
			advance(10 * time.Second)
			w.wantState("a", "s1", "Running")
		})
	})
	t.Run("startup probe", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				withSidecar(p)
				p.Spec.InitContainers[0].StartupProbe = &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"up"}}},
					PeriodSeconds: 1, FailureThreshold: 1000,
				}
			}))
			advance(5 * time.Second)
			w.wantState("a", "i1", "Waiting PodInitializing")
			up.Store(true)
			advance(2 * time.Second)
			w.wantState("a", "i1", "Running")
			up.Store(false)
			w.stop()
			w.rt.Reboot()
			w.start()
			advance(5 * time.Second)
			w.wantCalls("start a/s1#0", "start a/i1#0", "start a/s1#1")
			up.Store(true)
			advance(2 * time.Second)
			w.wantState("a", "i1", "Running")
			up.Store(false)
			w.rt.Exit("a", "s1", 1)
			w.rt.Exit("a", "i1", 0)
			advance(2 * time.Second)
			w.wantState("a", "main", "Running")
		})
	})
}

// TestRestartRules: an exit code that a rule of the container names has it run again, and with
// others its own policy comes before the pod's.
func TestRestartRules(t *testing.T) {
	for name, tt := range map[string]struct {
		container string
		policy    corev1.ContainerRestartPolicy
		operator  corev1.ContainerRestartRuleOnExitCodesOperator
		code      int32
		phase     corev1.PodPhase
		state     string
	}{
		"in":             {"main", corev1.ContainerRestartPolicyNever, corev1.ContainerRestartRuleOnExitCodesOpIn, 7, corev1.PodRunning, "Waiting CrashLoopBackOff"},
		"not in":         {"main", corev1.ContainerRestartPolicyNever, corev1.ContainerRestartRuleOnExitCodesOpNotIn, 8, corev1.PodRunning, "Waiting CrashLoopBackOff"},
		"other":          {"main", corev1.ContainerRestartPolicyNever, corev1.ContainerRestartRuleOnExitCodesOpIn, 8, corev1.PodFailed, "Terminated Error 7"},
		"all but this":   {"main", corev1.ContainerRestartPolicyNever, corev1.ContainerRestartRuleOnExitCodesOpNotIn, 7, corev1.PodFailed, "Terminated Error 7"},
		"own policy":     {"main", corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartRuleOnExitCodesOpIn, 8, corev1.PodRunning, "Waiting CrashLoopBackOff"},
		"init container": {"i1", corev1.ContainerRestartPolicyNever, corev1.ContainerRestartRuleOnExitCodesOpIn, 7, corev1.PodPending, "Waiting CrashLoopBackOff"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, exits(time.Second, map[string]int{tt.container: 7}), func(w *world) {
				w.create(newPod("a", func(p *corev1.Pod) {
					p.Spec.RestartPolicy = corev1.RestartPolicyNever
					c := &p.Spec.Containers[0]
					if tt.container == "i1" {
						withInit("i1")(p)
						c = &p.Spec.InitContainers[0]
					}
					c.RestartPolicy = &tt.policy
					c.RestartPolicyRules = []corev1.ContainerRestartRule{{
						Action:    corev1.ContainerRestartRuleActionRestart,
						ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: tt.operator, Values: []int32{tt.code, 9}},
					}}
				}))
				advance(3 * time.Second)
				w.wantPhase("a", tt.phase)
				w.wantState("a", tt.container, tt.state)
			})
		})
	}
}

// After a reboot init containers run before all main containers, also where the runtime has
// nothing of one of these, since it cannot be started.
func TestInitAfterRebootBesideFailure(t *testing.T) {
	inWorld(t, memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		if c.Name == "bad" {
			return memory.Behaviour{Err: errors.New("no such command")}
		}
		return memory.Behaviour{}
	}}, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			withInit("i1")(p)
			p.Spec.RestartPolicy = corev1.RestartPolicyAlways
			p.Spec.Containers = append(p.Spec.Containers, container1("bad"))
		}))
		advance(time.Second)
		w.rt.Exit("a", "i1", 0)
		advance(time.Second)
		w.wantState("a", "main", "Running")
		w.stop()
		w.rt.Reboot()
		before := w.rt.Calls()
		w.start()
		advance(time.Second)
		w.wantCalls(append(before, "start a/i1#1")...)
		w.wantPhase("a", corev1.PodPending)
	})
}

// TestInitAfterReboot: after a reboot of the machine a pod starts with its init containers and
// sidecars again, as in the kubelet.
func TestInitAfterReboot(t *testing.T) {
	for name, tt := range map[string]struct {
		policy corev1.RestartPolicy
		exits  bool   // the main container has ended with success before
		state  string // of i1 while it runs again
		calls  []string
		phase  corev1.PodPhase
	}{
		"Always":    {corev1.RestartPolicyAlways, false, "Running", []string{"start a/s1#1", "start a/i1#1", "start a/main#1"}, corev1.PodRunning},
		"OnFailure": {corev1.RestartPolicyOnFailure, false, "Terminated Completed 0", []string{"start a/s1#1", "start a/i1#1", "start a/main#1"}, corev1.PodRunning},
		"Never":     {corev1.RestartPolicyNever, false, "Terminated Completed 0", nil, corev1.PodFailed},
		"done":      {corev1.RestartPolicyOnFailure, true, "Terminated Completed 0", nil, corev1.PodSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, memory.Options{}, func(w *world) {
				w.create(newPod("a", func(p *corev1.Pod) {
					withInit("s1", "i1")(p)
					always := corev1.ContainerRestartPolicyAlways
					p.Spec.InitContainers[0].RestartPolicy = &always
					p.Spec.RestartPolicy = tt.policy
				}))
				advance(time.Second)
				w.rt.Exit("a", "i1", 0)
				advance(time.Second)
				w.wantPhase("a", corev1.PodRunning)
				before := w.rt.Calls()
				w.stop()
				if tt.exits {
					w.rt.Exit("a", "main", 0)
				}
				w.rt.Reboot()
				w.start()
				advance(time.Second)
				w.wantState("a", "i1", tt.state)
				if tt.calls != nil {
					w.wantCalls(append(before, tt.calls[:2]...)...)
					w.wantPhase("a", corev1.PodPending)
					w.restart() // of the agent alone: i1 is not begun once more
					advance(time.Second)
					w.rt.Exit("a", "i1", 0)
					advance(time.Second)
					w.wantState("a", "i1", "Terminated Completed 0")
				}
				w.wantCalls(append(before, tt.calls...)...)
				w.wantPhase("a", tt.phase)
			})
		})
	}
}

// sidecars makes a pod with that grace period and those sidecars.
func sidecars(seconds int64, names ...string) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		withInit(names...)(p)
		p.Spec.TerminationGracePeriodSeconds = &seconds
		for i := range p.Spec.InitContainers {
			p.Spec.InitContainers[i].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}
	}
}

// TestHooksOfSidecars: when a pod is deleted, all preStop hooks run at once. SIGTERM keeps its order.
func TestHooksOfSidecars(t *testing.T) {
	o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		return memory.Behaviour{TermDelay: map[string]time.Duration{"main": 5 * time.Second}[c.Name]}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			sidecars(30, "s1", "s2")(p)
			hook := &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}
			p.Spec.InitContainers[0].Lifecycle, p.Spec.InitContainers[1].Lifecycle, p.Spec.Containers[0].Lifecycle = hook, hook, hook
		}))
		advance(time.Second)
		w.remove("a", 30)
		for _, name := range []string{"main", "s1", "s2"} {
			w.wantEvent("a Normal Killing Stopping container " + name)
		}
		advance(9 * time.Second)
		w.wantStops("stop a/main#0 27s", "stop a/s2#0 22s", "stop a/s1#0 22s")
	})
}

// TestRestartBeforeTurn: an agent that ends while a sidecar waits for its turn does not stop it.
func TestRestartBeforeTurn(t *testing.T) {
	o := memory.Options{Start: func(runtime.Container) memory.Behaviour { return memory.Behaviour{TermDelay: 5 * time.Second} }}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", sidecars(30, "s1", "s2")))
		advance(time.Second)
		w.remove("a", 30)
		advance(time.Second)
		w.restart()
		w.wantStops("stop a/main#0 30s", "stop a/main#0 30s")
		advance(16 * time.Second)
		w.wantStops("stop a/main#0 30s", "stop a/main#0 30s", "stop a/s2#0 25s", "stop a/s1#0 20s")
	})
}

func (w *world) wantStops(want ...string) {
	w.t.Helper()
	got := slices.DeleteFunc(w.rt.Calls(), func(call string) bool { return !strings.HasPrefix(call, "stop ") })
	if !slices.Equal(got, want) {
		w.t.Errorf("the runtime was asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestTurnOfSidecars: a main container that takes all of the time leaves its sidecars the least one.
func TestTurnOfSidecars(t *testing.T) {
	o := memory.Options{Start: func(runtime.Container) memory.Behaviour { return memory.Behaviour{TermDelay: time.Hour} }}
	for _, second := range []int64{10, 4} { // the time of another delete
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", sidecars(30, "s1", "s2")))
			advance(time.Second)
			w.remove("a", 10)
			advance(time.Second)
			if second < 9 {
				w.remove("a", second)
			}
			advance(time.Duration(second+2) * time.Second)
			if w.find("default", "a") != nil {
				t.Errorf("the pod is still there: %q", w.rt.Calls())
			}
		})
	}
}

// TestSidecarsShareOneDeadline: sidecars of a pod that ends by itself have one grace period
// together, which begins with the end of the last other container, also if the agent restarts.
func TestSidecarsShareOneDeadline(t *testing.T) {
	o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		if c.Name == "main" {
			return memory.Behaviour{ExitAfter: time.Second}
		}
		return memory.Behaviour{TermDelay: time.Hour}
	}}
	for name, between := range map[string]func(w *world){
		"": func(*world) {}, "restart": (*world).restart,
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, o, func(w *world) {
				w.create(newPod("a", sidecars(6, "s1", "s2", "s3")))
				advance(4 * time.Second)
				between(w)
				advance(3 * time.Second)
				w.wantPhase("a", corev1.PodRunning)
				advance(3 * time.Second)
				w.wantPhase("a", corev1.PodSucceeded)
			})
		})
	}
	t.Run("away for longer", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", sidecars(6, "s1")))
			w.stop()
			advance(time.Minute)
			w.start()
			advance(5 * time.Second)
			w.wantPhase("a", corev1.PodRunning)
			w.wantCalls("start a/s1#0", "start a/main#0", "stop a/s1#0 6s")
			advance(2 * time.Second)
			w.wantPhase("a", corev1.PodSucceeded)
		})
	})
}
