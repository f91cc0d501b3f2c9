package pods

// Tests of a shutdown of the machine.

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// stubborn containers end only by SIGKILL, those named quick in two seconds.
var stubborn = memory.Options{Start: func(c runtime.Container) memory.Behaviour {
	if c.Pod.Name == "quick" {
		return memory.Behaviour{TermDelay: 2 * time.Second}
	}
	return memory.Behaviour{TermDelay: time.Hour}
}}

// thirty is how the kubelet divides 30 s with 10 s for critical pods.
var thirty = []Phase{{0, 20 * time.Second}, {CriticalPriority, 10 * time.Second}}

// shutDown starts a shutdown, and returns its duration on the channel.
func (w *world) shutDown(ctx context.Context, phases []Phase) <-chan time.Duration {
	took := make(chan time.Duration, 1)
	began, r := time.Now(), w.runner
	go func() {
		r.ShutDown(ctx, phases)
		took <- time.Since(began)
	}()
	synctest.Wait()
	return took
}

func withGrace(seconds int64, priority int32) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds, p.Spec.Priority = &seconds, &priority
	}
}

func (w *world) stops() []string {
	var list []string
	for _, c := range w.rt.Calls() {
		if strings.HasPrefix(c, "stop ") {
			list = append(list, c)
		}
	}
	return list
}

func (w *world) wantTerminated(name string) {
	w.t.Helper()
	st := w.pod(name).Status
	if st.Phase != corev1.PodFailed || st.Reason != "Terminated" || st.Message != "Pod was terminated in response to imminent node shutdown." {
		w.t.Errorf("pod %s: phase %s, reason %q, message %q", name, st.Phase, st.Reason, st.Message)
	}
	c := conditionOf(st.Conditions, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason != "TerminationByKubelet" || c.Message != st.Message {
		w.t.Errorf("pod %s: condition %+v", name, c)
	}
}

// TestShutdownPhases: regular pods have 20 s or their own grace, critical ones follow.
func TestShutdownPhases(t *testing.T) {
	inWorld(t, stubborn, func(w *world) {
		long, own, critical := newPod("long", withGrace(1000, 0)), newPod("own", withGrace(5, 100)), newPod("critical", withGrace(1000, CriticalPriority))
		for _, p := range []*corev1.Pod{long, own, critical} {
			w.create(p)
		}
		w.create(newPod("done", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
		w.rt.Exit("done", "main", 0)
		advance(time.Second)
		took := w.shutDown(w.t.Context(), thirty)
		advance(4 * time.Second)
		w.wantRunning("asked to end", long, own, critical)
		for _, p := range []*corev1.Pod{long, own} {
			if st := w.pod(p.Name).Status; st.Phase != corev1.PodRunning || st.Reason != "" || conditionOf(st.Conditions, corev1.DisruptionTarget) != nil {
				t.Errorf("%s while it ends: %s %q %v", p.Name, st.Phase, st.Reason, st.Conditions)
			}
		}
		advance(2 * time.Second)
		w.wantRunning("own grace over", long, critical)
		w.wantTerminated("own")
		w.create(newPod("new", nil))
		if st := w.pod("new").Status; st.Phase != corev1.PodFailed || st.Reason != "NodeShutdown" || st.Message != "Pod was rejected as the node is shutting down." {
			t.Errorf("new pod: %s %q %q", st.Phase, st.Reason, st.Message)
		}
		w.wantEvent("new Warning NodeShutdown Pod was rejected as the node is shutting down.")
		if got := w.stops(); len(got) != 2 {
			t.Errorf("stopped in the first phase: %q", got)
		}
		advance(15 * time.Second)
		w.wantRunning("first phase over", critical)
		w.wantTerminated("long")
		advance(10 * time.Second)
		w.wantRunning("shut down")
		w.wantTerminated("critical")
		if d := <-took; d != 30*time.Second {
			t.Errorf("took %s", d)
		}
		w.wantPhase("done", corev1.PodSucceeded)
		if st := w.pod("done").Status; st.Reason != "" || conditionOf(st.Conditions, corev1.DisruptionTarget) != nil {
			t.Errorf("pod that had succeeded: %q %v", st.Reason, st.Conditions)
		}
		// The machine comes back.
		w.restart()
		advance(10 * time.Minute)
		w.wantRunning("after the boot")
		w.wantTerminated("long")
		w.create(newPod("next", nil))
		w.wantPhase("next", corev1.PodRunning)
	})
}

// TestShutdownSkipsEmptyPhases: a phase without pods takes no time, and a phase ends with its
// last pod.
func TestShutdownSkipsEmptyPhases(t *testing.T) {
	for name, tt := range map[string]struct {
		priorities []int32
		want       time.Duration
	}{
		"no pods":       {nil, 0},
		"critical only": {[]int32{CriticalPriority + 1000}, 2 * time.Second},
		"regular only":  {[]int32{0}, 2 * time.Second},
		"below all":     {[]int32{-5}, 2 * time.Second},
		"both":          {[]int32{CriticalPriority, CriticalPriority - 1}, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			o := memory.Options{Start: func(runtime.Container) memory.Behaviour { return memory.Behaviour{TermDelay: 2 * time.Second} }}
			inWorld(t, o, func(w *world) {
				for i, priority := range tt.priorities {
					w.create(newPod([]string{"a", "b"}[i], withGrace(30, priority)))
				}
				advance(time.Second)
				if d := <-w.shutDown(w.t.Context(), thirty); d != tt.want {
					t.Errorf("took %s, want %s", d, tt.want)
				}
			})
		})
	}
}

// TestShutdownHasPreStopRun: a pod ends as it does when it is deleted.
func TestShutdownHasPreStopRun(t *testing.T) {
	var at time.Time
	o := stubborn
	o.Exec = func(context.Context, runtime.Container, []string, runtime.Stdio) (int, error) {
		at = time.Now()
		time.Sleep(time.Second)
		return 0, nil
	}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](4)
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"bye"}}}}
		}))
		advance(time.Second)
		began := time.Now()
		if d := <-w.shutDown(w.t.Context(), thirty); d != 4*time.Second || !at.Equal(began) {
			t.Errorf("took %s, hook after %s", d, at.Sub(began))
		}
		if got := w.stops(); len(got) != 1 || !strings.HasSuffix(got[0], " 3s") {
			t.Errorf("stops %q", got)
		}
		w.wantTerminated("a")
	})
}

// TestShutdownCancelled: pods whose phase had not started run on, new pods are admitted again,
// and ended ones stay ended.
func TestShutdownCancelled(t *testing.T) {
	inWorld(t, stubborn, func(w *world) {
		w.create(newPod("quick", withGrace(30, 0)))
		critical := newPod("critical", withGrace(30, CriticalPriority))
		w.create(critical)
		late := newPod("late", withGrace(15, 0))
		w.create(late)
		advance(time.Second)
		ctx, cancel := context.WithCancel(w.t.Context())
		took := w.shutDown(ctx, thirty)
		advance(5 * time.Second)
		cancel()
		if d := <-took; d != 5*time.Second {
			t.Errorf("took %s", d)
		}
		w.create(newPod("meanwhile", nil))
		w.wantPhase("meanwhile", corev1.PodFailed)
		w.runner.Resume()
		after := newPod("after", nil)
		w.create(after)
		advance(time.Minute)
		w.wantRunning("cancelled", critical, after)
		w.wantTerminated("quick")
		w.wantTerminated("late")
		// The next shutdown is not cancelled.
		if d := <-w.shutDown(w.t.Context(), thirty); d != 30*time.Second {
			t.Errorf("took %s", d)
		}
		w.wantTerminated("critical")
		w.wantTerminated("after")
	})
}

// TestShutdownWithoutServer: an API that does not answer does not delay the shutdown. The
// statuses are written when the node is back.
func TestShutdownWithoutServer(t *testing.T) {
	inWorld(t, stubborn, func(w *world) {
		w.create(newPod("quick", withGrace(30, 0)))
		w.create(newPod("long", withGrace(30, 0)))
		advance(time.Second)
		w.setOffline(true)
		if d := <-w.shutDown(w.t.Context(), thirty[:1]); d != 20*time.Second+tellMin {
			t.Errorf("took %s", d)
		}
		w.wantPhase("quick", corev1.PodRunning)
		w.stop()
		w.setOffline(false)
		w.start()
		advance(time.Minute)
		w.wantRunning("after the boot")
		w.wantTerminated("quick")
		w.wantTerminated("long")
	})
}

// TestAgentEndsDuringShutdown: an agent that is stopped does not end pods, and the next one runs
// those that had not ended.
func TestAgentEndsDuringShutdown(t *testing.T) {
	inWorld(t, stubborn, func(w *world) {
		critical := newPod("critical", withGrace(30, CriticalPriority))
		w.create(newPod("quick", withGrace(30, 0)))
		w.create(critical)
		long := newPod("long", withGrace(30, 0))
		w.create(long)
		advance(time.Second)
		ctx, cancel := context.WithCancel(w.t.Context())
		took := w.shutDown(ctx, thirty)
		advance(5 * time.Second)
		cancel()
		w.stop()
		<-took
		w.wantRunning("the agent has ended", critical, long)
		w.start()
		advance(10 * time.Minute)
		w.wantRunning("the machine is back", critical, long)
		w.wantTerminated("quick")
	})
}

// TestShutdownOfPodThatHasDoneItsWork: only its sidecar is ended, and the pod succeeds.
func TestShutdownOfPodThatHasDoneItsWork(t *testing.T) {
	inWorld(t, stubborn, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			withGrace(1000, 0)(p)
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			side := container1("side")
			side.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			p.Spec.InitContainers = []corev1.Container{side}
		}))
		deleted := newPod("deleted", withGrace(1000, 0))
		w.create(deleted)
		advance(time.Second)
		w.remove("deleted", 1000)
		w.rt.Exit("a", "main", 0)
		advance(time.Second)
		if d := <-w.shutDown(w.t.Context(), thirty); d != 20*time.Second {
			t.Errorf("took %s", d)
		}
		advance(time.Second)
		w.wantRunning("shut down")
		if st := w.pod("a").Status; st.Phase != corev1.PodSucceeded || st.Reason != "" {
			t.Errorf("phase %s, reason %q", st.Phase, st.Reason)
		}
		if p := w.find(metav1.NamespaceDefault, "deleted"); p != nil {
			t.Errorf("the deleted pod is still there: %v", p.Status.Phase)
		}
	})
}
