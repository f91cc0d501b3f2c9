package pods

// Tests of the removal of containers that have ended.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/fence"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// inRetention runs f in a world whose Runner has the Retention keep.
func inRetention(t *testing.T, keep Retention, o memory.Options, f func(w *world)) {
	t.Helper()
	inWorld(t, o, func(w *world) {
		w.stop()
		w.cfg.Retention = &keep
		w.start()
		f(w)
	})
}

// attempts are the containers of a pod in the runtime, as NAME#ATTEMPT, oldest first.
func (w *world) attempts(pod string) string {
	var list []string
	for _, c := range w.rt.Specs() {
		if c.Pod.Name == pod {
			list = append(list, fmt.Sprintf("%s#%d", c.Name, c.Attempt))
		}
	}
	return strings.Join(list, " ")
}

func (w *world) wantAttempts(pod, want string) {
	w.t.Helper()
	if got := w.attempts(pod); got != want {
		w.t.Errorf("of pod %s there are %q, want %q", pod, got, want)
	}
}

// exits ends the container main of a pod n times and waits for its restarts.
func (w *world) exits(pod string, n int) {
	w.t.Helper()
	for range n {
		if !w.rt.Exit(pod, "main", 1) {
			w.t.Fatalf("pod %s does not run", pod)
		}
		advance(2 * time.Minute)
	}
}

func TestRetention(t *testing.T) {
	tests := map[string]struct {
		keep        Retention
		soon, later string // right after, and a day later
	}{
		"default":     {Retention{0, DefaultPerContainer, DefaultTotal}, "main#3 main#4", "main#3 main#4"},
		"GC29":        {Retention{time.Hour, 1, -1}, "main#0 main#1 main#2 main#3 main#4", "main#3 main#4"},
		"GC30 none":   {Retention{0, 0, -1}, "main#4", "main#4"},
		"GC30 two":    {Retention{0, 2, -1}, "main#2 main#3 main#4", "main#2 main#3 main#4"},
		"GC30 all":    {Retention{0, -1, -1}, "main#0 main#1 main#2 main#3 main#4", "main#0 main#1 main#2 main#3 main#4"},
		"GC31 in all": {Retention{0, -1, 2}, "main#2 main#3 main#4", "main#2 main#3 main#4"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inRetention(t, tt.keep, memory.Options{}, func(w *world) {
				w.create(newPod("a", nil))
				advance(time.Second)
				w.exits("a", 4)
				check := func(want string) {
					t.Helper()
					w.wantAttempts("a", want)
					cs := w.pod("a").Status.ContainerStatuses[0]
					if last := cs.LastTerminationState.Terminated; cs.RestartCount != 4 || last == nil || last.ExitCode != 1 || last.ContainerID == "" {
						t.Errorf("status %+v", cs)
					}
				}
				check(tt.soon)
				advance(24 * time.Hour)
				check(tt.later)
			})
		})
	}
}

// TestRemovedIsNotRunAgain: after the last attempt of a container was removed, it is still in
// the pod's status and not run again, also after a restart of the agent.
func TestRemovedIsNotRunAgain(t *testing.T) {
	inRetention(t, Retention{}, memory.Options{}, func(w *world) {
		w.create(newPod("done", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
		w.create(newPod("two", func(p *corev1.Pod) {
			withInit("i1")(p)
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers = append(p.Spec.Containers, container1("side"))
		}))
		advance(time.Second)
		w.rt.Exit("done", "main", 0)
		w.rt.Exit("two", "i1", 0)
		advance(time.Second)
		w.rt.Exit("two", "main", 3)
		advance(2 * time.Second)
		before := []corev1.PodStatus{w.pod("done").Status, w.pod("two").Status}
		for _, when := range []string{"after a pass", "after a restart"} {
			advance(5 * time.Minute)
			w.wantAttempts("done", "")
			w.wantAttempts("two", "side#0")
			w.wantPhase("done", corev1.PodSucceeded)
			w.wantState("two", "main", "Terminated Error 3")
			w.wantState("two", "i1", "Terminated Completed 0")
			for i, name := range []string{"done", "two"} {
				got, want := w.pod(name).Status, before[i]
				for j := range want.ContainerStatuses {
					if got.ContainerStatuses[j].String() != want.ContainerStatuses[j].String() {
						t.Errorf("%s, %s: %s\nwas %s", when, name, got.ContainerStatuses[j].String(), want.ContainerStatuses[j].String())
					}
				}
			}
			w.restart()
		}
		for _, call := range w.rt.Calls() {
			if strings.HasPrefix(call, "start") && !strings.HasSuffix(call, "#0") {
				t.Errorf("the runtime was asked to %s", call)
			}
		}
	})
}

// TestRemovedWhileItWaits: a container whose last attempt is removed during its back-off is
// restarted after it, as its next attempt.
func TestRemovedWhileItWaits(t *testing.T) {
	inRetention(t, Retention{}, memory.Options{}, func(w *world) {
		w.create(newPod("a", nil))
		advance(time.Second)
		w.exits("a", 4)
		w.rt.Exit("a", "main", 7)
		advance(70 * time.Second)
		w.wantAttempts("a", "")
		w.wantState("a", "main", "Waiting CrashLoopBackOff")
		advance(15 * time.Second)
		w.wantAttempts("a", "main#5")
		if last := w.pod("a").Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 7 {
			t.Errorf("last state %+v", last)
		}
	})
}

// TestDeletedPodsStayYoung is GC34 in operation: containers of a deleted pod stay until
// they are old enough, with the sandbox, and hold up no pod of the same name.
func TestDeletedPodsStayYoung(t *testing.T) {
	inRetention(t, Retention{10 * time.Minute, 1, -1}, memory.Options{}, func(w *world) {
		sandboxes := func(want int) {
			t.Helper()
			if ids, err := w.rt.Sandboxes(t.Context()); err != nil || len(ids) != want {
				t.Errorf("sandboxes %v, %v; want %d", ids, err, want)
			}
		}
		for range 2 {
			w.create(newPod("a", nil))
			advance(time.Second)
			w.wantPhase("a", corev1.PodRunning)
			w.remove("a", 0)
			advance(10 * time.Second)
			if w.find("default", "a") != nil {
				t.Fatal("pod a is still there")
			}
		}
		w.wantAttempts("a", "main#0 main#0")
		sandboxes(2)
		w.stop()
		w.create(newPod("a", nil))
		w.start()
		advance(time.Second)
		w.wantPhase("a", corev1.PodRunning)
		w.stop() // and without a server
		w.setOffline(true)
		w.start()
		w.rt.Exit("a", "main", 1)
		advance(time.Minute)
		w.wantAttempts("a", "main#0 main#0 main#0 main#1")
		w.setOffline(false)
		advance(7 * time.Minute)
		w.wantAttempts("a", "main#0 main#0 main#0 main#1")
		advance(3 * time.Minute)
		w.wantAttempts("a", "main#0 main#1")
		sandboxes(1)
		if dirs, err := os.ReadDir(w.runner.places.pods()); err != nil || len(dirs) != 1 {
			t.Errorf("directories %v, %v; want one", dirs, err)
		}
	})
}

// TestForeignContainers is GC35 in operation: containers of no pod are not touched.
func TestForeignContainers(t *testing.T) {
	inRetention(t, Retention{}, memory.Options{}, func(w *world) {
		foreign := runtime.PodID{}
		if _, err := w.rt.EnsureSandbox(t.Context(), runtime.Sandbox{Pod: foreign}); err != nil {
			t.Fatal(err)
		}
		for i, end := range []bool{true, false} {
			if _, err := w.rt.Start(t.Context(), runtime.Container{Pod: foreign, Name: fmt.Sprint("x", i), Argv: []string{"x"}}); err != nil {
				t.Fatal(err)
			}
			if end {
				w.rt.Exit("", fmt.Sprint("x", i), 0)
			}
		}
		advance(10 * time.Minute)
		w.restart()
		advance(10 * time.Minute)
		w.wantCalls("start /x0#0", "start /x1#0")
	})
}

// TestFencedKeepsAll: while another agent is the node, nothing is removed here.
func TestFencedKeepsAll(t *testing.T) {
	f := &fence.Fence{}
	inRetention(t, Retention{}, memory.Options{}, func(w *world) {
		w.stop()
		w.cfg.Fence = f
		w.start()
		w.create(newPod("a", nil))
		advance(time.Second)
		w.rt.Exit("a", "main", 1)
		advance(time.Second)
		f.Set(true)
		advance(10 * time.Minute)
		w.wantAttempts("a", "main#0 main#1")
	})
}

// An awkward runtime has removals that fail or take long, and lists that fail.
type awkward struct {
	*memory.Runtime
	remove func(id string) error
	list   atomic.Pointer[error]
}

func (a *awkward) Remove(ctx context.Context, id string) error {
	if err := a.remove(id); err != nil {
		return err
	}
	return a.Runtime.Remove(ctx, id)
}

func (a *awkward) Containers(ctx context.Context) ([]runtime.ContainerStatus, error) {
	if err := a.list.Load(); err != nil {
		return nil, *err
	}
	return a.Runtime.Containers(ctx)
}

// podOf is the name of a container's pod.
func (a *awkward) podOf(id string) string {
	list, _ := a.Runtime.Containers(context.Background())
	for _, c := range list {
		if c.ID == id {
			return c.Pod.Name
		}
	}
	return ""
}

func (w *world) awkward(keep Retention, remove func(a *awkward, id string) error) *awkward {
	w.stop()
	a := &awkward{Runtime: w.rt}
	a.remove = func(id string) error { return remove(a, id) }
	w.cfg.Runtime, w.cfg.Retention = a, &keep
	w.start()
	return a
}

// TestRemovalFails: a container that cannot be removed does not prevent the start of its
// successors or the removal of others.
func TestRemovalFails(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.awkward(Retention{0, 1, -1}, func(a *awkward, id string) error {
			if id == "m1" {
				return errors.New("directory is immutable")
			}
			return nil
		})
		w.create(newPod("a", nil))
		advance(time.Second)
		w.exits("a", 4)
		w.wantAttempts("a", "main#0 main#3 main#4")
		w.wantState("a", "main", "Running")
		if n := len(w.logged("directory is immutable")); n == 0 || n > 15 {
			t.Errorf("told %d times in eight minutes", n)
		}
	})
}

func TestListFails(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		a := w.awkward(Retention{}, func(*awkward, string) error { return nil })
		broken := errors.New("runtime is broken")
		a.list.Store(&broken)
		advance(90 * time.Second)
		w.wantEvent(thisNode + " Warning ContainerGCFailed runtime is broken")
		a.list.Store(nil)
	})
}

// TestSlowRemovals: slow removals delay the removals of others, since there are at most
// maxRemovals at a time, and nothing else.
func TestSlowRemovals(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		release := make(chan struct{})
		var under, most atomic.Int32
		w.awkward(Retention{}, func(a *awkward, id string) error {
			if strings.HasPrefix(a.podOf(id), "slow") {
				most.Store(max(most.Load(), under.Add(1)))
				<-release
				under.Add(-1)
			}
			return nil
		})
		pods := []string{"slow0", "slow1", "slow2", "slow3", "slow4", "slow5"}
		for _, name := range pods {
			w.create(newPod(name, nil))
		}
		advance(time.Second)
		for _, name := range pods {
			w.rt.Exit(name, "main", 1)
		}
		advance(time.Minute)
		if n := under.Load(); n != maxRemovals {
			t.Errorf("%d removals under way, want %d", n, maxRemovals)
		}
		w.create(newPod("quick", nil))
		advance(time.Second)
		w.rt.Exit("quick", "main", 1)
		advance(time.Minute)
		w.wantAttempts("quick", "main#0 main#1") // waits for its turn
		w.rt.Exit("quick", "main", 1)
		advance(time.Minute)
		w.wantState("quick", "main", "Running")
		w.remove("quick", 0)
		advance(10 * time.Second)
		if w.find("default", "quick") != nil || w.attempts("quick") != "" {
			t.Errorf("pod quick is held up; there is %q", w.attempts("quick"))
		}
		close(release)
		advance(2 * time.Minute)
		for _, name := range pods {
			w.wantAttempts(name, "main#1")
		}
		if n := most.Load(); n > maxRemovals {
			t.Errorf("%d removals at a time, want at most %d", n, maxRemovals)
		}
	})
}

// TestManyAttempts: hundreds of attempts of one pod are removed in portions, and other pods
// have removals in the same pass.
func TestManyAttempts(t *testing.T) {
	var calm atomic.Bool
	inRetention(t, Retention{0, -1, -1}, flood(&calm), func(w *world) {
		w.stop()
		w.cfg.CrashDelay, w.cfg.MaxCrashDelay = 1, 1
		w.start()
		w.create(newPod("a", nil))
		advance(time.Second)
		w.exits("a", 2)
		w.create(newPod("flood", nil))
		advance(30 * time.Second)
		calm.Store(true)
		advance(time.Second)
		count := func() int { return len(strings.Fields(w.attempts("flood"))) }
		first := count()
		if first < 200 {
			t.Fatalf("%d attempts, want hundreds", first)
		}
		w.stop()
		w.cfg.Retention = &Retention{0, 1, -1}
		w.start()
		for pass := 1; count() > 2; pass++ {
			before := count()
			advance(time.Minute)
			if n := before - count(); n < 1 || n > maxGarbage {
				t.Fatalf("pass %d removed %d, want at most %d", pass, n, maxGarbage)
			}
			w.wantAttempts("a", "main#1 main#2")
		}
	})
}

// TestFloodIsBounded: with the default a pod has at most two attempts of each container at
// any time, also between two passes.
func TestFloodIsBounded(t *testing.T) {
	var calm atomic.Bool
	inWorld(t, flood(&calm), func(w *world) {
		w.stop()
		w.cfg.CrashDelay, w.cfg.MaxCrashDelay = 1, 1
		w.start()
		w.create(newPod("flood", nil))
		for range 200 {
			advance(70 * time.Millisecond)
			if n := len(strings.Fields(w.attempts("flood"))); n > 2 {
				t.Fatalf("%d attempts are kept, want 2", n)
			}
		}
		calm.Store(true)
	})
}

// flood makes pods of that name restart as fast as possible until calm is set.
func flood(calm *atomic.Bool) memory.Options {
	return memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		if c.Pod.Name == "flood" && !calm.Load() {
			return memory.Behaviour{ExitAfter: 100 * time.Millisecond, ExitCode: 1}
		}
		return memory.Behaviour{}
	}}
}
