package pods

// Tests of static pods: only their files decide whether they run.

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/fence"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// files stands in for the files of a node.
type files struct {
	mu   sync.Mutex
	pods []*corev1.Pod
	read bool
}

func (f *files) Pods() ([]*corev1.Pod, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods, f.read
}

// staticPod makes a static pod with one container "main". Its uid depends on content.
func staticPod(name, content string) *corev1.Pod {
	uid := "static-" + name + "-" + content
	p := newPod(name+"-"+thisNode, nil)
	p.UID, p.Generation = types.UID(uid), 0
	p.Labels = map[string]string{"app": name}
	p.Annotations = map[string]string{"kubernetes.io/config.hash": uid, "kubernetes.io/config.source": "file"}
	return p
}

// A staticWorld is a world whose node has static pods.
type staticWorld struct {
	*world
	files *files
	node  atomic.Pointer[corev1.Node] // the Node in the API; nil while it is not known
}

// inStaticWorld runs f in a bubble with a world in which nothing runs yet: neither the Node
// nor the server is known.
func inStaticWorld(t *testing.T, o memory.Options, f func(w *staticWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &staticWorld{world: newWorld(t, o), files: &files{read: true}}
		w.mirrorServer()
		w.cfg.Static, w.cfg.Node = w.files, w.node.Load
		w.setOffline(true)
		f(w)
		w.stop()
		if err := w.rt.Violations(); err != nil {
			t.Errorf("the runtime was misused: %v", err)
		}
	})
}

// define sets the pods in the files.
func (w *staticWorld) define(list ...*corev1.Pod) {
	w.files.mu.Lock()
	w.files.pods = list
	w.files.mu.Unlock()
	if w.runner != nil {
		w.runner.Wake()
	}
	synctest.Wait()
}

// wantStarts checks how often a static pod's process was started, and whether it runs.
func (w *staticWorld) wantStarts(p *corev1.Pod, starts int, runs bool) {
	w.t.Helper()
	all, err := w.rt.Containers(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	running := false
	for _, c := range all {
		running = running || c.Pod.UID == p.UID && c.State == runtime.Running
	}
	n := 0
	for _, c := range w.rt.Specs() {
		if c.Pod.UID == p.UID {
			n = max(n, c.Attempt+1)
		}
	}
	if running != runs || runs && n != starts {
		w.t.Errorf("%s was started %d times and runs: %v; want %d, %v", p.UID, n, running, starts, runs)
	}
}

// TestStaticOffline: a node that starts without a server runs its static pods at once, also
// after a restart, and ends those whose file was removed.
func TestStaticOffline(t *testing.T) {
	inStaticWorld(t, memory.Options{}, func(w *staticWorld) {
		a, b := staticPod("a", "1"), staticPod("b", "1")
		w.define(a, b)
		w.start()
		w.wantStarts(a, 1, true)
		w.wantStarts(b, 1, true)
		w.restart()
		advance(time.Minute)
		w.wantStarts(a, 1, true)
		w.rt.Exit(a.Name, "main", 1)
		advance(time.Minute)
		w.wantStarts(a, 2, true)

		w.stop()
		w.define(a)
		w.start()
		advance(time.Minute)
		w.wantStarts(a, 2, true)
		w.wantStarts(b, 1, false)

		w.stop()
		w.files.read = false // they cannot be read: a is not removed
		w.define()
		w.start()
		advance(time.Hour)
		w.wantStarts(a, 2, true)
		w.files.read = true
		w.define()
		advance(time.Minute)
		w.wantStarts(a, 2, false)
		if len(w.runner.list()) != 0 {
			t.Errorf("pods %v", w.runner.list())
		}
	})
}

// TestStaticChanges: another content is another pod, which starts when the older one has
// ended. If a file comes back while its pod ends, the pod runs again.
func TestStaticChanges(t *testing.T) {
	inStaticWorld(t, slow, func(w *staticWorld) {
		one, two := staticPod("a", "1"), staticPod("a", "2")
		w.define(one)
		w.start()
		w.wantStarts(one, 1, true)
		w.define(two)
		advance(time.Second)
		w.wantStarts(one, 1, true)
		w.wantStarts(two, 0, false)
		advance(time.Minute)
		w.wantStarts(one, 1, false)
		w.wantStarts(two, 1, true)
		w.define()
		advance(time.Second)
		w.define(two)
		advance(time.Second)
		w.wantStarts(two, 1, true) // still the one that ends
		advance(time.Minute)
		w.wantStarts(two, 1, true)
		if n := len(w.stops()); n != 2 {
			t.Errorf("stopped %d times: %v", n, w.stops())
		}
	})
}

// TestStaticShutdown: a shutdown of the machine ends static pods in their phase and admits no
// new ones. It has no effect on the next run of the agent.
func TestStaticShutdown(t *testing.T) {
	inStaticWorld(t, stubborn, func(w *staticWorld) {
		a, late := staticPod("a", "1"), staticPod("late", "1")
		w.online()
		w.define(a)
		w.start()
		advance(time.Second)
		w.wantState(a.Name, "main", "Running")
		took := w.shutDown(w.t.Context(), thirty)
		w.define(a, late)
		if d := <-took; d > 31*time.Second {
			t.Errorf("it took %s", d)
		}
		w.wantTerminated(a.Name)
		w.wantStarts(a, 1, false)
		w.runner.Resume()
		advance(time.Minute)
		w.wantStarts(a, 1, false)
		w.wantStarts(late, 1, true)
		w.restart()
		advance(time.Minute)
		w.wantStarts(a, 2, true)
		w.wantPhase(a.Name, corev1.PodRunning)
		if c := conditionOf(w.pod(a.Name).Status.Conditions, corev1.DisruptionTarget); c != nil {
			t.Errorf("it has %v", c)
		}
	})
}

// TestStaticEnds: a pod that must not be restarted is not, also after a restart of the agent.
func TestStaticEnds(t *testing.T) {
	inStaticWorld(t, memory.Options{}, func(w *staticWorld) {
		a := staticPod("a", "1")
		a.Spec.RestartPolicy = corev1.RestartPolicyNever
		w.online()
		w.define(a)
		w.start()
		advance(time.Second)
		w.rt.Exit(a.Name, "main", 0)
		advance(time.Minute)
		w.wantPhase(a.Name, corev1.PodSucceeded)
		mirror := w.pod(a.Name).UID
		w.restart()
		advance(time.Hour)
		w.wantStarts(a, 1, false)
		if now := w.pod(a.Name); now.UID != mirror || now.Status.Phase != corev1.PodSucceeded {
			t.Errorf("mirror %s %s, was %s", now.UID, now.Status.Phase, mirror)
		}
	})
}

// TestStaticName: a pod with the name of a static one does not prevent that from running: both
// run, and they are not confused.
func TestStaticName(t *testing.T) {
	inStaticWorld(t, memory.Options{Namesakes: true}, func(w *staticWorld) {
		a := staticPod("a", "1")
		w.online()
		thief := newPod(a.Name, nil)
		w.create(thief)
		w.start()
		advance(time.Second)
		w.define(a)
		advance(time.Minute)
		w.wantStarts(thief, 1, true)
		w.wantStarts(a, 1, true)
		w.restart()
		advance(time.Minute)
		w.wantStarts(thief, 1, true)
		w.wantStarts(a, 1, true)
		if n := len(w.logged("is not shown as it is")); n != 2 { // once by each Runner
			t.Errorf("told %d times", n)
		}
		p, err := w.runner.Pod(w.t.Context(), types.NamespacedName{Namespace: "default", Name: a.Name}, "")
		if err != nil || p.UID != thief.UID {
			t.Errorf("the name leads to %v, %v", p, err)
		}
		w.remove(a.Name, 0)
		advance(time.Minute)
		w.wantStarts(thief, 1, false)
		w.wantStarts(a, 1, true)
		if m := w.pod(a.Name); !isMirror(m) {
			t.Errorf("%v is no mirror", m.ObjectMeta)
		}
	})
}

// TestStaticCounts: a static pod and its mirror count once on the node.
func TestStaticCounts(t *testing.T) {
	inStaticWorld(t, memory.Options{}, func(w *staticWorld) {
		w.cfg.MaxPods = 2
		w.online()
		a := staticPod("a", "1")
		w.define(a)
		w.start()
		advance(time.Minute)
		fits, tooMany := newPod("fits", nil), newPod("toomany", nil)
		w.create(fits)
		w.create(tooMany)
		advance(time.Minute)
		w.wantStarts(fits, 1, true)
		w.wantStarts(tooMany, 0, false)
		w.wantEvent("toomany Warning OutOfpods")

		// One that does not fit is refused, and tried again by the next run of the agent.
		b := staticPod("b", "1")
		w.define(a, b)
		advance(time.Minute)
		w.wantPhase(b.Name, corev1.PodFailed)
		w.remove("fits", 0)
		advance(time.Minute)
		w.wantStarts(b, 0, false)
		w.restart()
		advance(time.Minute)
		w.wantStarts(b, 1, true)
		w.wantPhase(b.Name, corev1.PodRunning)
	})
}

// TestStaticFence: while another agent is the node its static pods do not run here.
func TestStaticFence(t *testing.T) {
	inStaticWorld(t, memory.Options{}, func(w *staticWorld) {
		w.cfg.Fence = &fence.Fence{}
		w.online()
		a := staticPod("a", "1")
		w.define(a)
		w.start()
		advance(time.Second)
		w.wantStarts(a, 1, true)
		w.cfg.Fence.Set(true)
		advance(time.Minute)
		w.wantStarts(a, 1, false)
		mirror := w.pod(a.Name).UID
		w.cfg.Fence.Set(false)
		advance(time.Minute)
		w.wantStarts(a, 2, true)
		if now := w.pod(a.Name).UID; now != mirror {
			t.Errorf("the mirror is %s, was %s", now, mirror)
		}
	})
}

// TestStaticRefused: a static pod is refused for the same reasons as a pod of the API.
func TestStaticRefused(t *testing.T) {
	inStaticWorld(t, memory.Options{}, func(w *staticWorld) {
		a := staticPod("a", "1")
		a.Spec.ShareProcessNamespace = ptr.To(true)
		w.online()
		w.define(a)
		w.start()
		advance(time.Minute)
		w.wantStarts(a, 0, false)
		w.wantPhase(a.Name, corev1.PodFailed)
		if st := w.pod(a.Name).Status; !strings.Contains(st.Message, "shareProcessNamespace") {
			t.Errorf("status %+v", st)
		}
		ctx, cancel := context.WithCancel(w.t.Context())
		cancel()
		w.runner.ShutDown(ctx, nil) // there is nothing to wait for
	})
}
