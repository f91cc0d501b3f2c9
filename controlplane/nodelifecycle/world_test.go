package nodelifecycle

// A world for tests: an API server that is strict about resource versions, nodes
// that beat, a controller, and a history of what became of the nodes.

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

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/loop"
)

var nodesGVR = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

// A world must be used in a synctest bubble. Nodes beat one second after each
// tenth, so that no heartbeat meets a pass.
type world struct {
	t      *testing.T
	began  time.Time
	client *fake.Clientset
	store  clienttesting.ObjectTracker
	cfg    Config
	deps   loop.Deps
	logs   *lines

	mu      sync.Mutex
	version int             // guarded by mu, as is all below
	beating map[string]bool // nodes that renew their Leases
	skew    map[string]time.Duration
	history []string // what happened to nodes, with the time
	events  []string // as "offset node type reason: message"
	outage  bool     // nothing answers
	fails   func(a clienttesting.Action) error

	stop func()
}

const (
	beat      = 10 * time.Second
	beatPhase = time.Second
)

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, began: time.Now(), client: &fake.Clientset{}, logs: &lines{},
		store:   clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder()),
		beating: map[string]bool{}, skew: map[string]time.Duration{},
	}
	w.deps = loop.Deps{Events: w, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(w.logs, nil))}
	w.client.AddReactor("*", "*", clienttesting.ObjectReaction(w.store))
	w.client.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		i, err := w.store.Watch(a.GetResource(), a.GetNamespace())
		return err == nil, i, err
	})
	w.client.PrependReactor("update", "nodes", w.writeNode)
	w.client.PrependReactor("patch", "nodes", w.writeNode)
	w.client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.outage && a.GetVerb() != "list" && a.GetVerb() != "watch" {
			return true, nil, errors.New("connection refused")
		}
		if w.fails != nil {
			if err := w.fails(a); err != nil {
				return true, nil, err
			}
		}
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.beat(ctx) })
	t.Cleanup(func() {
		w.halt()
		cancel()
		wg.Wait()
	})
	return w
}

// since is the time since the world began.
func (w *world) since() time.Duration { return time.Since(w.began) }

// until lets the world go on until a time after its beginning.
func (w *world) until(d time.Duration) {
	w.t.Helper()
	if d < w.since() {
		w.t.Fatalf("%v is over", d)
	}
	<-time.After(d - w.since())
	synctest.Wait()
}

// writeNode writes nodes as a real server does: only what was asked for, and
// only if the node is still what the writer believes it to be.
func (w *world) writeNode(a clienttesting.Action) (bool, runtime.Object, error) {
	var edit func(n *corev1.Node)
	var name, version string
	var uid types.UID
	switch a := a.(type) {
	case clienttesting.UpdateAction:
		given, _ := a.GetObject().(*corev1.Node)
		name, version, uid = given.Name, given.ResourceVersion, given.UID
		edit = func(n *corev1.Node) { n.Status = given.Status }
	case clienttesting.PatchAction:
		var p struct {
			Metadata struct {
				UID             types.UID
				ResourceVersion string
				Labels          map[string]string
			}
			Spec *struct{ Taints []corev1.Taint }
		}
		if err := json.Unmarshal(a.GetPatch(), &p); err != nil {
			return true, nil, apierrors.NewBadRequest(err.Error())
		}
		name, version, uid = a.GetName(), p.Metadata.ResourceVersion, p.Metadata.UID
		if p.Spec != nil && version == "" {
			return true, nil, apierrors.NewBadRequest("taints are written blindly")
		}
		edit = func(n *corev1.Node) {
			for k, v := range p.Metadata.Labels {
				n.Labels[k] = v
			}
			if p.Spec != nil {
				n.Spec.Taints = p.Spec.Taints
			}
		}
	}
	return w.change(name, version, uid, edit)
}

func (w *world) change(name, version string, uid types.UID, edit func(n *corev1.Node)) (bool, runtime.Object, error) {
	obj, err := w.store.Get(nodesGVR, "", name)
	if err != nil {
		return true, nil, err
	}
	before, _ := obj.(*corev1.Node)
	if (version != "" && version != before.ResourceVersion) || uid != before.UID {
		return true, nil, apierrors.NewConflict(nodesGVR.GroupResource(), name, errors.New("it has changed"))
	}
	after := before.DeepCopy()
	edit(after)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version++
	after.ResourceVersion = strconv.Itoa(w.version)
	w.note(before, after)
	return true, after, w.store.Update(nodesGVR, after, "")
}

// note keeps history. It is called with mu held.
func (w *world) note(before, after *corev1.Node) {
	say := func(format string, args ...any) {
		w.history = append(w.history, fmt.Sprintf("%v %s ", w.since(), after.Name)+fmt.Sprintf(format, args...))
	}
	if b, a := readiness(before), readiness(after); a != b {
		say("Ready=%s", a)
	}
	had, has := strings.Fields(written(before.Spec.Taints)), strings.Fields(written(after.Spec.Taints))
	for _, t := range had {
		if !slices.Contains(has, t) {
			say("-%s", t)
		}
	}
	for _, t := range has {
		if !slices.Contains(had, t) {
			say("+%s", t)
		}
	}
}

// add makes nodes that are ready and beat, in a zone.
func (w *world) add(zone string, names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.make(name, zone, corev1.ConditionTrue)
		w.renew(name)
		w.mu.Lock()
		w.beating[name] = true
		w.mu.Unlock()
	}
}

// make makes a node without a Lease. An empty status is no Ready condition.
func (w *world) make(name, zone string, ready corev1.ConditionStatus) *corev1.Node {
	w.t.Helper()
	w.mu.Lock()
	w.version++
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(fmt.Sprint(name, "-", w.version)), ResourceVersion: strconv.Itoa(w.version),
		CreationTimestamp: metav1.Now(), Labels: map[string]string{},
	}}
	w.mu.Unlock()
	if zone != "" {
		n.Labels[corev1.LabelTopologyZone] = zone
	}
	if ready != "" {
		n.Status.Conditions = conditions(ready)
	}
	if err := w.store.Create(nodesGVR, n, ""); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func conditions(ready corev1.ConditionStatus) []corev1.NodeCondition {
	var out []corev1.NodeCondition
	for _, typ := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable, corev1.NodeReady} {
		c := corev1.NodeCondition{Type: typ, Status: corev1.ConditionFalse, Reason: "KubeletSays", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
		if typ == corev1.NodeReady {
			c.Status = ready
		}
		out = append(out, c)
	}
	return out
}

// post has a node's agent post its whole status.
func (w *world) post(name string, ready corev1.ConditionStatus) {
	w.t.Helper()
	n := w.node(name)
	if _, _, err := w.change(name, "", n.UID, func(n *corev1.Node) { n.Status.Conditions = conditions(ready) }); err != nil {
		w.t.Fatal(err)
	}
}

// silence makes nodes stop beating.
func (w *world) silence(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		delete(w.beating, name)
	}
}

// heal has nodes renew their Leases and post that they are ready, and go on.
func (w *world) heal(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.renew(name)
		w.post(name, corev1.ConditionTrue)
		w.mu.Lock()
		w.beating[name] = true
		w.mu.Unlock()
	}
}

func (w *world) beat(ctx context.Context) {
	for pause(ctx, beatPhase) {
		w.mu.Lock()
		var names []string
		for name := range w.beating {
			names = append(names, name)
		}
		outage := w.outage
		w.mu.Unlock()
		slices.Sort(names)
		for _, name := range names {
			if !outage {
				w.renew(name)
			}
		}
		if !pause(ctx, beat-beatPhase) {
			return
		}
	}
}

// renew writes a Lease as the node's clock has it.
func (w *world) renew(name string) {
	w.mu.Lock()
	now := metav1.NewMicroTime(time.Now().Add(w.skew[name]))
	w.mu.Unlock()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
	l.Spec.RenewTime = &now
	gvr := coordinationv1.SchemeGroupVersion.WithResource("leases")
	err := w.store.Update(gvr, l, l.Namespace)
	if apierrors.IsNotFound(err) {
		err = w.store.Create(gvr, l, l.Namespace)
	}
	if err != nil {
		w.t.Error(err)
	}
}

// start runs a controller, as after a start of the process.
func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	f := informers.NewSharedInformerFactory(w.client, 0)
	w.deps.Client, w.deps.Informers = w.client, f
	c, err := New(w.deps, w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	f.Start(ctx.Done())
	synctest.Wait() // the caches are full: the next line, which polls, takes no time
	f.WaitForCacheSync(ctx.Done())
	done := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { done <- c.Run(ctx) })
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
		wg.Wait()
		f.Shutdown()
	}
	synctest.Wait()
}

// halt ends the controller, if one runs.
func (w *world) halt() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

func (w *world) node(name string) *corev1.Node {
	w.t.Helper()
	obj, err := w.store.Get(nodesGVR, "", name)
	if err != nil {
		w.t.Fatal(err)
	}
	n, _ := obj.(*corev1.Node)
	return n
}

// happened returns what of the history has one of the words in it, and forgets
// all of it.
func (w *world) happened(words ...string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.history
	w.history = nil
	return slices.DeleteFunc(all, func(s string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(s, word) })
	})
}

func (w *world) expect(step string, words []string, want ...string) {
	w.t.Helper()
	if got := w.happened(words...); !slices.Equal(got, want) {
		w.t.Errorf("%s:\n got %s\nwant %s", step, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// told returns the events with a reason, and forgets them.
func (w *world) told(reason string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	w.events = slices.DeleteFunc(w.events, func(s string) bool {
		if !strings.Contains(s, " "+reason+": ") {
			return false
		}
		out = append(out, s)
		return true
	})
	slices.Sort(out)
	return out
}

// Event and its like make the world an event recorder.
func (w *world) Event(obj runtime.Object, typ, reason, message string) {
	var name string
	switch o := obj.(type) {
	case *corev1.ObjectReference:
		name = o.Name
		if o.UID == "" || o.Kind != "Node" {
			w.t.Errorf("event %s about %+v", reason, o)
		}
	case *corev1.Pod:
		name = o.Namespace + "/" + o.Name
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%v %s %s %s: %s", w.since(), name, typ, reason, message))
}

func (w *world) Eventf(obj runtime.Object, typ, reason, format string, args ...any) {
	w.Event(obj, typ, reason, fmt.Sprintf(format, args...))
}

func (w *world) AnnotatedEventf(obj runtime.Object, _ map[string]string, typ, reason, format string, args ...any) {
	w.Event(obj, typ, reason, fmt.Sprintf(format, args...))
}

// metric returns the value of a gauge or counter with one label.
func (w *world) metric(name, label string) float64 {
	w.t.Helper()
	reg, _ := w.deps.Metrics.(*prometheus.Registry)
	families, err := reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == label {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	w.t.Errorf("no metric %s of %q", name, label)
	return -1
}

// writes counts what the controller has written, and forgets it.
func (w *world) writes() int {
	n := 0
	for _, a := range w.client.Actions() {
		if v := a.GetVerb(); v != "list" && v != "watch" {
			n++
		}
	}
	w.client.ClearActions()
	return n
}

// lines is a log.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	return len(p), nil
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, s := range l.all {
		if strings.Contains(s, text) {
			n++
		}
	}
	return n
}

// named returns n names of nodes.
func named(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%02d", prefix, i+1)
	}
	return out
}

// key is the key of a zone that has no region.
func key(zone string) string { return ":\x00:" + zone }
