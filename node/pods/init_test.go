package pods

// Tests of init containers and sidecars.

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
