// This file is the world in which pods are tested: an API in memory, a runtime in
// memory, a clock of the bubble.

package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/auth/apiclient/apiclienttest"
	"github.com/hawser-project/hawser/node/runtime/memory"
	"github.com/hawser-project/hawser/node/runtime/process"
)

func TestMain(m *testing.M) {
	process.ShimMain()
	// One of them sleeps by a clock outside of the bubble.
	utilruntime.ErrorHandlers = nil
	goleak.VerifyTestMain(m,
		// Asks a file system of the machine until that answers or is unmounted.
		goleak.IgnoreAnyFunction("github.com/hawser-project/hawser/node/runtime/process.(*looks).begin.func1"),
		goleak.IgnoreTopFunction("os/exec.(*Cmd).watchCtx"),
	)
}

const thisNode = "node-1"

// A world has all that a Runner needs.
type world struct {
	t      *testing.T
	api    *fake.Clientset
	rt     *memory.Runtime
	cfg    Config
	runner *Runner
	stop   func()

	mu      sync.Mutex
	offline bool
	watches []watch.Interface
	listed  apiruntime.Object // by the last list of pods
	events  []string
	log     []string
	phases  map[types.UID]corev1.PodPhase // as last written
	patches int
	version int // the latest of a pod

	hopeless bool // pods may be deleted whose phase cannot be written
}

// inWorld runs f in a bubble with a world whose Runner runs.
func inWorld(t *testing.T, o memory.Options, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, o)
		w.start()
		f(w)
		w.stop()
		if err := w.rt.Violations(); err != nil {
			t.Errorf("the runtime was misused: %v", err)
		}
	})
}

func newWorld(t *testing.T, o memory.Options) *world {
	w := &world{
		t: t, rt: memory.New(o), phases: map[types.UID]corev1.PodPhase{},
		api: fake.NewSimpleClientset(), version: 1000,
	}
	w.api.PrependReactor("list", "pods", w.list)
	w.api.PrependReactor("*", "*", w.outage)
	w.api.PrependWatchReactor("*", w.watch)
	w.api.PrependReactor("patch", "pods", w.checkPatch)
	w.api.PrependReactor("delete", "pods", w.checkDelete)
	w.cfg = Config{
		NodeName: thisNode, API: apiclienttest.From(w.api), Runtime: w.rt, Events: w, Dir: t.TempDir(),
		HostIPs: func() []string { return []string{"10.1.1.1"} },
		Log:     slog.New(slog.NewTextHandler(logWriter{w}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	return w
}

// logWriter keeps the log.
type logWriter struct{ w *world }

func (l logWriter) Write(p []byte) (int, error) {
	if testing.Verbose() {
		print(string(p))
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.w.log = append(l.w.log, string(p))
	return len(p), nil
}

// logged lists the lines of the log that contain text.
func (w *world) logged(text string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for _, line := range w.log {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// start starts a Runner, as the agent does.
func (w *world) start() {
	w.t.Helper()
	r, err := New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.runner = r
	w.run()
	synctest.Wait()
}

// run runs the Runner.
func (w *world) run() {
	r := w.runner
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	}
}

// restart ends the Runner and starts another.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// setOffline makes every call to the API fail as if there were no connection, and
// breaks the watches.
func (w *world) setOffline(off bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if off && !w.offline {
		for _, broken := range w.watches {
			broken.Stop()
		}
		w.watches = nil
	}
	w.offline = off
}

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// list lists pods, and records them.
func (w *world) list(a k8stesting.Action) (bool, apiruntime.Object, error) {
	all, err := w.api.Tracker().List(a.GetResource(), podKind, a.GetNamespace())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listed = all
	return true, all, err
}

// watch watches until the connection is lost. The tracker starts with changes from now on, so
// that changes since the list are missed.
func (w *world) watch(a k8stesting.Action) (bool, watch.Interface, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.offline {
		return true, nil, errNoConnection
	}
	through, err := w.api.Tracker().Watch(a.GetResource(), a.GetNamespace())
	if err != nil {
		return true, nil, err
	}
	if a.GetResource().Resource == "pods" {
		now, err := w.api.Tracker().List(a.GetResource(), podKind, a.GetNamespace())
		if err != nil || !equality.Semantic.DeepEqual(now, w.listed) {
			through.Stop()
			return true, nil, apierrors.NewResourceExpired("too old resource version")
		}
	}
	w.watches = append(w.watches, through)
	return true, through, nil
}

var errNoConnection = errors.New("dial tcp: connect: connection refused")

func (w *world) outage(k8stesting.Action) (bool, apiruntime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.offline {
		return true, nil, errNoConnection
	}
	return false, nil, nil
}

// checkPatch applies a patch of a pod's status as the API server does, and checks that it is
// allowed.
func (w *world) checkPatch(a k8stesting.Action) (bool, apiruntime.Object, error) {
	p := a.(k8stesting.PatchAction)
	var patch struct {
		Metadata struct{ UID types.UID }
		Status   struct {
			Phase             corev1.PodPhase
			ContainerStatuses []corev1.ContainerStatus
		}
	}
	if err := json.Unmarshal(p.GetPatch(), &patch); err != nil {
		return true, nil, err
	}
	old := w.find(p.GetNamespace(), p.GetName())
	if old == nil {
		return false, nil, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.patches++
	if p.GetSubresource() != "status" {
		w.t.Errorf("patch of subresource %q", p.GetSubresource())
	}
	if patch.Metadata.UID != old.UID {
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, p.GetName(), errors.New("uid differs"))
	}
	if before := w.phases[old.UID]; terminal(before) && patch.Status.Phase != "" && patch.Status.Phase != before {
		w.t.Errorf("pod %s was %s and became %s", old.Name, before, patch.Status.Phase)
	}
	if patch.Status.Phase != "" {
		w.phases[old.UID] = patch.Status.Phase
	}
	for i := range patch.Status.ContainerStatuses {
		if cs := &patch.Status.ContainerStatuses[i]; (cs.State.Running != nil || cs.State.Waiting != nil) && stayedDead(old, cs.Name) {
			w.t.Errorf("container %s of pod %s lives again, which the API server refuses: %+v", cs.Name, old.Name, cs.State)
		}
	}
	if w.offline {
		return true, nil, errNoConnection
	}
	return k8stesting.ObjectReaction(versioned{w.api.Tracker(), w})(a)
}

// A versioned tracker gives each pod that is patched a version, so that the agent can tell the answer
// to a patch from what its watch brings later.
type versioned struct {
	k8stesting.ObjectTracker
	w *world // whose mu is held
}

func (v versioned) Patch(gvr schema.GroupVersionResource, obj apiruntime.Object, namespace string, o ...metav1.PatchOptions) error {
	obj.(*corev1.Pod).ResourceVersion = v.w.versionLocked() // which is in the answer, too
	return v.ObjectTracker.Patch(gvr, obj, namespace, o...)
}

// versionLocked is the next version of a pod.
func (w *world) versionLocked() string {
	w.version++
	return strconv.Itoa(w.version)
}

// stayedDead reports whether a container has ended, as the API has it, and its policy is that
// it does not run again.
func stayedDead(p *corev1.Pod, name string) bool {
	for i := range p.Spec.Containers {
		if c := &p.Spec.Containers[i]; c.Name == name && c.RestartPolicy != nil {
			return false
		}
	}
	for i := range p.Status.ContainerStatuses {
		if cs := &p.Status.ContainerStatuses[i]; cs.Name == name && cs.State.Terminated != nil {
			return p.Spec.RestartPolicy == corev1.RestartPolicyNever || p.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && cs.State.Terminated.ExitCode == 0
		}
	}
	return false
}

// checkDelete applies the uid precondition of deletes.
func (w *world) checkDelete(a k8stesting.Action) (bool, apiruntime.Object, error) {
	d := a.(k8stesting.DeleteActionImpl)
	old := w.find(d.GetNamespace(), d.GetName())
	o := d.DeleteOptions
	switch {
	case o.Preconditions == nil || o.Preconditions.UID == nil || o.GracePeriodSeconds == nil || *o.GracePeriodSeconds != 0:
		w.t.Errorf("pod %s deleted with options %v", d.GetName(), o)
	case old != nil && old.UID != *o.Preconditions.UID:
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, d.GetName(), errors.New("uid differs"))
	case old != nil && !terminal(old.Status.Phase) && !isMirror(old) && !w.hopeless:
		w.t.Errorf("pod %s deleted in phase %s", old.Name, old.Status.Phase)
	}
	return false, nil, nil
}

// find returns a pod as the API has it, or nil.
func (w *world) find(namespace, name string) *corev1.Pod {
	obj, err := w.api.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), namespace, name)
	if err != nil {
		return nil
	}
	return obj.(*corev1.Pod)
}

// pod returns a pod of namespace default as the API has it.
func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	p := w.find("default", name)
	if p == nil {
		w.t.Fatalf("pod %s is not in the API", name)
	}
	return p
}

// Event records an event as "KIND REASON MESSAGE".
func (w *world) Event(ref corev1.ObjectReference, eventType, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s %s %s %s", ref.Name, eventType, reason, message))
}

// saw reports how many events contain text.
func (w *world) saw(text string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		if strings.Contains(e, text) {
			n++
		}
	}
	return n
}

func (w *world) wantEvent(text string) {
	w.t.Helper()
	if w.saw(text) == 0 {
		w.t.Errorf("no event %q among\n%s", text, strings.Join(w.events, "\n"))
	}
}

// create adds a pod to the API.
func (w *world) create(p *corev1.Pod) {
	w.t.Helper()
	p = p.DeepCopy()
	p.CreationTimestamp = metav1.Now()
	w.stamp(p, "")
	if err := w.api.Tracker().Add(p); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// stamp gives a pod that has version was the next one.
func (w *world) stamp(p *corev1.Pod, was string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.ResourceVersion == was {
		p.ResourceVersion = w.versionLocked()
	}
}

// update changes a pod as another client.
func (w *world) update(name string, change func(p *corev1.Pod)) {
	w.t.Helper()
	synctest.Wait() // else it would revert a concurrent write
	p := w.pod(name).DeepCopy()
	was := p.ResourceVersion
	change(p)
	w.stamp(p, was)
	if err := w.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, "default"); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// remove deletes a pod as kubectl delete --grace-period=seconds does; negative
// seconds remove it from the API at once.
func (w *world) remove(name string, seconds int64) {
	w.t.Helper()
	if seconds < 0 {
		if err := w.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "default", name); err != nil {
			w.t.Fatal(err)
		}
		synctest.Wait()
		return
	}
	w.update(name, func(p *corev1.Pod) {
		at := metav1.NewTime(time.Now().Add(time.Duration(seconds) * time.Second))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &seconds
	})
}

// advance sleeps, and waits for all consequences.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (w *world) wantPhase(name string, want corev1.PodPhase) {
	w.t.Helper()
	if got := w.pod(name).Status.Phase; got != want {
		w.t.Errorf("pod %s is %s, want %s", name, got, want)
	}
}

// state of a container as "Running", "Waiting REASON" or "Terminated REASON CODE".
func state(p *corev1.Pod, name string) string {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for _, cs := range list {
			if cs.Name == name {
				return stateOf(cs.State)
			}
		}
	}
	return "none"
}

func stateOf(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "Running"
	case s.Waiting != nil:
		return "Waiting " + s.Waiting.Reason
	case s.Terminated != nil:
		return fmt.Sprintf("Terminated %s %d", s.Terminated.Reason, s.Terminated.ExitCode)
	}
	return "none"
}

func (w *world) wantState(pod, container, want string) {
	w.t.Helper()
	if got := state(w.pod(pod), container); got != want {
		w.t.Errorf("container %s of pod %s is %s, want %s", container, pod, got, want)
	}
}

func (w *world) wantCalls(want ...string) {
	w.t.Helper()
	if got := w.rt.Calls(); !slices.Equal(got, want) {
		w.t.Errorf("the runtime was asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func condition(p *corev1.Pod, t corev1.PodConditionType) string {
	c := conditionOf(p.Status.Conditions, t)
	if c == nil {
		return "none"
	}
	return strings.TrimSpace(string(c.Status) + " " + c.Reason)
}

var serial int

// newPod makes a pod bound to this node with one container "main"; change adapts
// it.
func newPod(name string, change func(p *corev1.Pod)) *corev1.Pod {
	serial++
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(fmt.Sprintf("uid-%s-%d", name, serial)), Generation: 1},
		Spec: corev1.PodSpec{
			NodeName: thisNode, RestartPolicy: corev1.RestartPolicyAlways,
			Containers: []corev1.Container{container1("main")},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort},
	}
	if change != nil {
		change(p)
	}
	return p
}

func container1(name string) corev1.Container {
	return corev1.Container{Name: name, Image: "busybox", Command: []string{"/bin/" + name}}
}
