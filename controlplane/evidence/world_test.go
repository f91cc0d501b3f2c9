package evidence

// The nodes, sessions and judge that the tests run on.

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/auth"
)

// A world is nodes, their sessions and a judge.
type world struct {
	t        *testing.T
	judge    *Judge
	nodes    cache.Indexer
	events   *record.FakeRecorder
	links    error
	mu       sync.Mutex // guards the following
	sessions map[string]*Session
}

func newWorld(t *testing.T, c Config) *world {
	t.Helper()
	w := &world{
		t: t, sessions: make(map[string]*Session), events: record.NewFakeRecorder(100),
		nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}),
	}
	c.Source, c.Nodes, c.Events = w, corelisters.NewNodeLister(w.nodes), w.events
	if c.Links == nil {
		c.Links = func() error { return w.links }
	}
	var err error
	if w.judge, err = New(c); err != nil {
		t.Fatal(err)
	}
	return w
}

// Observe makes the world a Source. An attached node was heard just now.
func (w *world) Observe(node string) (Session, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sessions[node]
	if s == nil {
		return Session{}, false
	}
	out := *s
	out.Changes = slices.Clone(s.Changes)
	if out.Change = s.Changes[len(s.Changes)-1]; out.State == Attached && s.Heard.IsZero() {
		out.Heard = time.Now()
	} else if out.State == Attached {
		out.Heard = s.Heard
	}
	return out, true
}

// node makes a node, with a session if it is to have one.
func (w *world) node(name, zone string, hasTunnel bool) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), Labels: map[string]string{}, Annotations: map[string]string{},
	}}
	if zone != "" {
		n.Labels[auth.SiteLabel] = zone
	}
	if err := w.nodes.Add(n); err != nil {
		w.t.Fatal(err)
	}
	if hasTunnel {
		w.turn(name, Attached, "", 0)
	}
	return n
}

// turn changes a session, which was last heard so long before.
func (w *world) turn(name string, state State, cause Cause, silence time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sessions[name]
	if s == nil {
		s = &Session{Node: name}
		w.sessions[name] = s
	}
	s.Heard = time.Time{}
	s.Changes = append(s.Changes, Change{
		Number: uint64(len(s.Changes) + 1), At: time.Now(), Heard: time.Now().Add(-silence), State: state, Cause: cause, Addr: "192.0.2.1:4711",
	})
}

// hang has a session stay attached and say nothing any more.
func (w *world) hang(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions[name].Heard = time.Now()
}

// speak has it go on as if nothing had been.
func (w *world) speak(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions[name].Heard = time.Time{}
}

// unknown makes a node Unknown as of now.
func (w *world) unknown(name string) *corev1.Node { return w.ready(name, corev1.ConditionUnknown) }

func (w *world) ready(name string, status corev1.ConditionStatus) *corev1.Node {
	n := w.get(name).DeepCopy()
	n.Status.Conditions = append(slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }),
		corev1.NodeCondition{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.Now()})
	if err := w.nodes.Update(n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) get(name string) *corev1.Node {
	o, ok, err := w.nodes.GetByKey(name)
	if err != nil || !ok {
		w.t.Fatalf("no node %s: %v", name, err)
	}
	return o.(*corev1.Node)
}

func (w *world) annotate(name, key, value string) {
	n := w.get(name).DeepCopy()
	n.Annotations[key] = value
	if err := w.nodes.Update(n); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) condition(name string, typ corev1.NodeConditionType, status corev1.ConditionStatus) {
	n := w.get(name).DeepCopy()
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: typ, Status: status})
	if err := w.nodes.Update(n); err != nil {
		w.t.Fatal(err)
	}
}

// reason is the excuse of a node that is Unknown; none is "".
func (w *world) reason(name string) string {
	w.t.Helper()
	n := w.get(name)
	reason, message, until, ok := w.judge.Excuse(n)
	if ok != (reason != "") || ok != strings.Contains(message, clock(until)) {
		w.t.Errorf("%s: %q %q %v %v", name, reason, message, until, ok)
	}
	return reason
}

// silence cuts nodes and waits until they are Unknown, as they are 40 s later.
func (w *world) silence(names ...string) {
	pass(20 * time.Second)
	for _, n := range names {
		w.turn(n, Parked, Silent, 20*time.Second)
	}
	pass(20 * time.Second)
	for _, n := range names {
		w.unknown(n)
	}
}

func pass(d time.Duration) { <-time.After(d) }
