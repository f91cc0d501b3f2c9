package pods

// Tests of pods while their node is disconnected.

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8stesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// slow containers take ten seconds to end.
var slow = memory.Options{Start: func(runtime.Container) memory.Behaviour {
	return memory.Behaviour{TermDelay: 10 * time.Second}
}}

// running lists the containers that run, as POD/UID.
func (w *world) running() []string {
	w.t.Helper()
	list, err := w.rt.Containers(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, c := range list {
		if c.State == runtime.Running {
			names = append(names, c.Pod.Name+"/"+string(c.Pod.UID))
		}
	}
	slices.Sort(names)
	return names
}

func (w *world) wantRunning(when string, pods ...*corev1.Pod) {
	w.t.Helper()
	var want []string
	for _, p := range pods {
		want = append(want, p.Name+"/"+string(p.UID))
	}
	slices.Sort(want)
	if got := w.running(); !slices.Equal(got, want) {
		w.t.Errorf("%s: %v run, want %v", when, got, want)
	}
}

// deletes lists the delete calls since from, as POD GRACE UID.
func (w *world) deletes(from int) []string {
	var list []string
	for _, a := range w.api.Actions()[from:] {
		if d, ok := a.(k8stesting.DeleteActionImpl); ok {
			list = append(list, fmt.Sprintf("%s %d %s", d.GetName(), *d.DeleteOptions.GracePeriodSeconds, *d.DeleteOptions.Preconditions.UID))
		}
	}
	return list
}

// TestHealing changes a pod while the node is disconnected, with an agent that runs on, one
// that is restarted meanwhile, and one that is down until the end.
func TestHealing(t *testing.T) {
	agents := map[string]struct{ during, after func(w *world) }{
		"agent runs on":          {func(*world) {}, func(*world) {}},
		"agent restarts cut off": {(*world).restart, func(*world) {}},
		"agent is down":          {func(w *world) { w.stop() }, (*world).start},
	}
	for name, agent := range agents {
		// cut starts pods a and b, changes a while the node is disconnected, and reconnects.
		cut := func(change func(w *world), check func(w *world, a, b *corev1.Pod, from int)) func(t *testing.T) {
			return func(t *testing.T) {
				inWorld(t, slow, func(w *world) {
					a, b := newPod("a", nil), newPod("b", nil)
					w.create(a)
					w.create(b)
					advance(time.Second)
					w.setOffline(true)
					agent.during(w)
					advance(time.Minute)
					change(w)
					advance(10 * time.Minute)
					w.wantRunning("cut off", a, b)
					from := len(w.api.Actions())
					w.setOffline(false)
					agent.after(w)
					advance(40 * time.Second) // 15 of them until the next try to watch
					check(w, a, b, from)
					w.wantRunning("in the end", alive(w, a, b)...)
					calls := w.rt.Calls()
					if n := len(slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return !strings.HasPrefix(c, "start b/") })); n != 1 {
						w.t.Errorf("the pod that was left alone was started %d times: %q", n, calls)
					}
				})
			}
		}
		t.Run(name+", deleted by force", cut(func(w *world) { w.remove("a", -1) }, func(w *world, _, b *corev1.Pod, from int) {
			w.wantRunning("healed", b)
			if got := w.deletes(from); len(got) != 0 {
				w.t.Errorf("deleted %q in the API, where it has gone", got)
			}
			if dirs, err := os.ReadDir(w.runner.places.pods()); err != nil || len(dirs) != 1 {
				w.t.Errorf("directories %v, %v; want that of b", dirs, err)
			}
		}))
		t.Run(name+", evicted", cut(func(w *world) { w.remove("a", 30) }, func(w *world, a, b *corev1.Pod, from int) {
			w.wantRunning("healed", b)
			if got, want := w.deletes(from), []string{fmt.Sprintf("a 0 %s", a.UID)}; !slices.Equal(got, want) {
				w.t.Errorf("deletions %q, want %q", got, want)
			}
			if w.find("default", "a") != nil {
				w.t.Error("the deletion was not confirmed")
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if got := w.phases[a.UID]; got != corev1.PodSucceeded {
				w.t.Errorf("last phase %q, want Succeeded", got)
			}
		}))
		t.Run(name+", evicted with little grace", cut(func(w *world) { w.remove("a", 3) }, func(w *world, a, b *corev1.Pod, _ int) {
			w.wantRunning("healed", b)
			w.mu.Lock()
			defer w.mu.Unlock()
			if got := w.phases[a.UID]; got != corev1.PodFailed {
				w.t.Errorf("last phase %q, want Failed: it was killed", got)
			}
		}))
		t.Run(name+", replaced", cut(func(w *world) {
			w.remove("a", -1)
			w.create(newPod("a", nil))
		}, func(w *world, a, b *corev1.Pod, from int) {
			second := w.pod("a")
			if second.UID == a.UID {
				w.t.Fatal("the pod was not replaced")
			}
			w.wantRunning("healed", second, b)
			if got := w.deletes(from); len(got) != 0 {
				w.t.Errorf("deletions %q, want none", got)
			}
			w.wantPhase("a", corev1.PodRunning)
			// The runtime checks that no container of the second ran at the same
			// time as one of the first.
		}))
	}
}

// alive are the pods in the API, and their replacements.
func alive(w *world, pods ...*corev1.Pod) []*corev1.Pod {
	var list []*corev1.Pod
	for _, p := range pods {
		if now := w.find(p.Namespace, p.Name); now != nil {
			list = append(list, now)
		}
	}
	return list
}

// TestMachineRebootsCutOff: after a reboot without a server the machine runs its pods from its
// disk.
func TestMachineRebootsCutOff(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.addInputs()
		a := newPod("a", withInputs)
		w.create(a)
		advance(time.Minute)
		w.wantRunning("before", a)
		w.stop()
		w.rt = memory.New(memory.Options{})
		w.cfg.Runtime = w.rt
		w.setOffline(true)
		w.start()
		advance(9 * time.Second)
		w.wantRunning("just rebooted") // a server might be reachable
		advance(2 * time.Second)
		w.wantRunning("rebooted", a)
		specs := w.rt.Specs()
		if len(specs) == 0 {
			t.Fatal("no container was started")
		}
		spec := specs[0]
		if !slices.Contains(spec.Env, "KEY=value") {
			t.Errorf("environment %q", spec.Env)
		}
		for _, m := range spec.Mounts {
			switch m.ContainerPath {
			case "/keys":
				if data, err := os.ReadFile(m.HostPath + "/key"); err != nil || string(data) != "hidden" {
					t.Errorf("secret %q, %v", data, err)
				}
			case "/token":
				if data, err := os.ReadFile(m.HostPath + "/token"); err != nil || string(data) != "a token" {
					t.Errorf("token %q, %v", data, err)
				}
			}
		}
		// It crashes, and the agent is restarted once more.
		w.restart()
		w.rt.Exit("a", "main", 1)
		advance(time.Minute)
		w.wantRunning("crashed", a)
		w.setOffline(false)
		advance(2 * time.Minute)
		w.wantRunning("healed", a)
		if got := w.pod("a").Status.ContainerStatuses[0].RestartCount; got != 2 {
			t.Errorf("restart count %d, want 2", got)
		}
	})
}

// TestMovedWhileAway: pods that were moved while the machine was down do not run again, not
// for a moment, if a server is reachable.
func TestMovedWhileAway(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		a, b := newPod("a", nil), newPod("b", nil)
		w.create(a)
		w.create(b)
		w.create(newPod("c", nil))
		advance(time.Second)
		w.stop()
		w.rt = memory.New(memory.Options{})
		w.cfg.Runtime = w.rt
		w.remove("a", -1)
		w.remove("c", 30)
		w.setOffline(true)
		w.start()
		advance(2 * time.Second) // the server is not reachable at once
		w.setOffline(false)
		advance(time.Minute)
		w.wantRunning("healed", b)
		w.wantCalls("start b/main#1")
		if w.find("default", "c") != nil {
			t.Error("the deletion was not confirmed")
		}
	})
}

// TestWhatHappenedCutOff: an ended pod stays ended, the statuses of the others are corrected,
// and a container with facts of its node has the same ones.
func TestWhatHappenedCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memory.Options{})
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: thisNode}, Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("3"), "pods": resource.MustParse("10")},
		}}
		w.cfg.Node = func() *corev1.Node { return node }
		w.start()
		w.create(newPod("job", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
		w.create(newPod("service", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CORES", ValueFrom: &corev1.EnvVarSource{
				ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"},
			}}}
		}))
		advance(time.Second)
		w.setOffline(true)
		w.rt.Exit("job", "main", 0)
		advance(time.Second)
		w.stop()
		node = nil // as after a start without a server
		w.start()
		w.rt.Exit("service", "main", 1)
		advance(time.Minute)
		// The control plane's changes after the node's silence:
		w.update("service", func(p *corev1.Pod) {
			for i := range p.Status.Conditions {
				if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
					c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
				}
			}
		})
		w.setOffline(false)
		advance(time.Minute)
		w.wantPhase("job", corev1.PodSucceeded)
		w.wantRunning("healed", w.pod("service"))
		if got := condition(w.pod("service"), corev1.PodReady); got != "True" {
			t.Errorf("Ready is %s, want True again", got)
		}
		for _, c := range w.rt.Specs() {
			if c.Pod.Name == "service" && !slices.Contains(c.Env, "CORES=3") {
				t.Errorf("attempt %d has environment %q", c.Attempt, c.Env)
			}
			if c.Pod.Name == "job" && c.Attempt > 0 {
				t.Error("the job ran again")
			}
		}
		w.stop()
	})
}

// TestDeletedPodStaysDeleted: an agent that is restarted while it stops a deleted pod continues
// to stop it, also without a server.
func TestDeletedPodStaysDeleted(t *testing.T) {
	inWorld(t, slow, func(w *world) {
		w.create(newPod("a", nil))
		advance(time.Second)
		w.remove("a", -1)
		advance(time.Second)
		w.stop()
		w.setOffline(true)
		w.start()
		advance(10 * time.Minute)
		w.wantRunning("cut off")
		if calls := w.rt.Calls(); len(slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return !strings.HasPrefix(c, "start") })) != 1 {
			t.Errorf("a deleted pod has come back: %q", calls)
		}
		w.setOffline(false)
		advance(time.Minute)
		if dirs, err := os.ReadDir(w.runner.places.pods()); err != nil || len(dirs) != 0 {
			t.Errorf("directories %v, %v; want none", dirs, err)
		}
	})
}

// TestStrayBeforeItsNamesake: a running pod is known from the runtime only, and the API has
// another one of its name.
func TestStrayBeforeItsNamesake(t *testing.T) {
	inWorld(t, slow, func(w *world) {
		first := newPod("a", nil)
		w.create(first)
		advance(time.Second)
		w.stop()
		if err := os.RemoveAll(w.runner.places.pods()); err != nil {
			t.Fatal(err)
		}
		w.remove("a", -1)
		second := newPod("a", nil)
		w.create(second)
		w.start()
		advance(5 * time.Second)
		w.wantRunning("stopping", first)
		if n := len(w.logged("waits until the older one")); n != 1 {
			t.Errorf("%d lines say why it waits, want one", n)
		}
		advance(20 * time.Second)
		w.wantRunning("in the end", second)
	})
}

// TestRunningPodsAreNotRefused: a running pod counts as admitted, also after changes of the Node
// or loss of the agent's files.
func TestRunningPodsAreNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memory.Options{})
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: thisNode, Labels: map[string]string{"disk": "ssd"}}}
		w.cfg.Node = func() *corev1.Node { return node }
		w.start()
		onSSD := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }
		a, b := newPod("a", onSSD), newPod("b", onSSD)
		w.create(a)
		w.create(b)
		advance(time.Second)
		w.wantRunning("before", a, b)
		w.stop()
		if err := os.RemoveAll(w.runner.places.pod(b.UID)); err != nil {
			t.Fatal(err)
		}
		node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: thisNode}}
		w.start()
		advance(time.Minute)
		w.wantRunning("relabelled", a, b)
		w.create(newPod("c", onSSD))
		advance(time.Second)
		if got := w.pod("c").Status.Reason; got != "NodeAffinity" {
			t.Errorf("reason %q, want NodeAffinity", got)
		}
		w.stop()
	})
}
