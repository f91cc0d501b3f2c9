package garbage

// Tests of the collector against an API server made of maps, in fake time.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Of the API server that one test runs: one goroutine sleeps for 3 s beside
		// a read that has long been answered, one is the process's health checks'.
		goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"),
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
	)
}

// The kinds that there are: things and parts in namespaces, hosts not.
var gvrs = map[string]schema.GroupVersionResource{
	"Thing": {Group: "example.com", Version: "v1", Resource: "things"},
	"Part":  {Group: "example.com", Version: "v1", Resource: "parts"},
	"Host":  {Group: "example.com", Version: "v1", Resource: "hosts"},
	"Event": {Version: "v1", Resource: "events"},
	"Quiet": {Group: "example.com", Version: "v1", Resource: "quiets"}, // cannot be watched
}

type disco struct {
	discovery.DiscoveryInterfaces
	err *atomic.Pointer[error]
}

func (d disco) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	all := metav1.Verbs{"delete", "get", "list", "patch", "watch"}
	lists := []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "events", Kind: "Event", Namespaced: true, Verbs: all}}},
		{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
			{Name: "things", Kind: "Thing", Namespaced: true, Verbs: all},
			{Name: "things/status", Kind: "Thing", Namespaced: true, Verbs: metav1.Verbs{"get"}},
			{Name: "parts", Kind: "Part", Namespaced: true, Verbs: all},
			{Name: "hosts", Kind: "Host", Verbs: all},
			{Name: "quiets", Kind: "Quiet", Namespaced: true, Verbs: metav1.Verbs{"get", "delete"}},
		}},
	}
	if err := d.err.Load(); err != nil {
		return nil, lists, *err
	}
	return nil, lists, nil
}

type client struct {
	*fake.Clientset
	disco disco
}

func (c client) Discovery() discovery.DiscoveryInterfaces { return c.disco }

// A world is a collector and what it works on.
type world struct {
	*testing.T
	ctx     context.Context
	server  *apitest.Server
	objects *metadatafake.FakeMetadataClient
	events  *record.FakeRecorder
	disco   atomic.Pointer[error] // nil: nothing fails
	metrics *prometheus.Registry
	start   func()
	stop    func()
}

// bubble runs f with objs there, in fake time.
func bubble(t *testing.T, f func(w *world), objs ...*metav1.PartialObjectMetadata) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		scheme := metadatafake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		meta := metadatafake.NewSimpleMetadataClient(scheme)
		w := &world{T: t, objects: meta, events: record.NewFakeRecorder(1000), metrics: prometheus.NewRegistry()}
		w.server = &apitest.Server{ObjectTracker: meta.Tracker()}
		meta.ReactionChain, meta.WatchReactionChain = nil, nil
		w.server.Serve(&meta.Fake)
		w.ctx = t.Context()
		for _, o := range objs {
			w.create(o)
		}
		c, err := New(loop.Deps{
			Client: client{&fake.Clientset{}, disco{err: &w.disco}}, Objects: meta, Events: w.events, Metrics: w.metrics,
			Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		w.start = func() {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			w.stop = func() {
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Run: %v", err)
				}
			}
			w.settle()
		}
		f(w)
		w.stop()
	})
}

func (w *world) settle() {
	<-time.After(5 * time.Second)
	synctest.Wait()
}

// obj makes an object "Kind ns/name" or "Host name" of uid name, edited.
func obj(what string, edits ...func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
	kind, rest, _ := strings.Cut(what, " ")
	ns, name, namespaced := strings.Cut(rest, "/")
	if !namespaced {
		ns, name = "", rest
	}
	o := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: gvrs[kind].GroupVersion().String(), Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(name)},
	}
	for _, e := range edits {
		e(o)
	}
	return o
}

// owned adds an owner "Kind name"; block is blockOwnerDeletion.
func owned(by string, block bool) func(*metav1.PartialObjectMetadata) {
	return func(o *metav1.PartialObjectMetadata) {
		kind, name, _ := strings.Cut(by, " ")
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{
			APIVersion: gvrs[kind].GroupVersion().String(), Kind: kind, Name: name, UID: types.UID(name), BlockOwnerDeletion: &block,
		})
	}
}

func held(o *metav1.PartialObjectMetadata) { o.Finalizers = append(o.Finalizers, "example.com/held") }

func (w *world) create(o *metav1.PartialObjectMetadata) {
	w.Helper()
	if err := w.server.Create(gvrs[o.Kind], o, o.Namespace); err != nil {
		w.Fatal(err)
	}
}

func (w *world) remove(what string, policy metav1.DeletionPropagation) {
	w.Helper()
	o := obj(what)
	if err := w.server.Delete(gvrs[o.Kind], o.Namespace, o.Name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		w.Fatal(err)
	}
	w.settle()
}

// release takes the test's own finalizer off.
func (w *world) release(what string) {
	w.Helper()
	o := obj(what)
	now, err := w.objects.Resource(gvrs[o.Kind]).Namespace(o.Namespace).Get(w.ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	left := slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == "example.com/held" })
	patch := fmt.Sprintf(`{"metadata":{"finalizers":["%s"]}}`, strings.Join(left, `","`))
	if len(left) == 0 {
		patch = `{"metadata":{"finalizers":null}}`
	}
	if _, err := w.objects.Resource(gvrs[o.Kind]).Namespace(o.Namespace).Patch(w.ctx, o.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
	w.settle()
}

// all returns what there is, sorted by name.
func (w *world) all() []*metav1.PartialObjectMetadata {
	w.Helper()
	var out []*metav1.PartialObjectMetadata
	for kind, gvr := range gvrs {
		list, err := w.server.List(gvr, metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"), "")
		if err != nil {
			w.Fatal(err)
		}
		l, ok := list.(*metav1.PartialObjectMetadataList)
		if !ok {
			w.Fatalf("%T", list)
		}
		for i := range l.Items {
			l.Items[i].TypeMeta = metav1.TypeMeta{APIVersion: gvr.GroupVersion().String(), Kind: kind}
			out = append(out, &l.Items[i])
		}
	}
	slices.SortFunc(out, func(a, b *metav1.PartialObjectMetadata) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// there tells what there is: names, with ' for those being deleted, and the
// owners after a <.
func (w *world) there() string {
	w.Helper()
	var out []string
	for _, o := range w.all() {
		s := o.Name
		if o.DeletionTimestamp != nil {
			s += "'"
		}
		for _, r := range o.OwnerReferences {
			s += "<" + r.Name
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (w *world) expect(step, want string) {
	w.Helper()
	if got := w.there(); got != want {
		w.Errorf("%s: there are %q, want %q", step, got, want)
	}
}

const (
	background = metav1.DeletePropagationBackground
	inFront    = metav1.DeletePropagationForeground
	orphaned   = metav1.DeletePropagationOrphan
)

func TestBackground(t *testing.T) {
	bubble(t, func(w *world) {
		w.start()
		w.expect("at first", "a b<a c<b d<a<e e ev<a f<a")
		w.remove("Thing ns/a", background)
		w.expect("the owner is gone", "d<e e ev<a")
		w.remove("Thing ns/e", background)
		w.expect("the other, too", "ev<a")
	}, obj("Thing ns/a"), obj("Part ns/b", owned("Thing a", true)), obj("Part ns/c", owned("Part b", true)),
		obj("Part ns/d", owned("Thing a", true), owned("Thing e", false)), obj("Thing ns/e"), obj("Part ns/f", owned("Thing a", false)), obj("Event ns/ev", owned("Thing a", false)))
}

// TestAbsentOwners: owners that went while nobody looked, that never were, or
// that are others by now.
func TestAbsentOwners(t *testing.T) {
	otherUID := func(o *metav1.PartialObjectMetadata) { o.OwnerReferences[0].UID = "before" }
	bubble(t, func(w *world) {
		w.start()
		w.expect("in the end", "a d<h<h2 h live<quiet quiet")
	}, obj("Thing ns/a"), obj("Host h"), obj("Part ns/b", owned("Thing gone", false)), obj("Part ns/c", owned("Thing a", false), otherUID),
		obj("Part ns/d", owned("Host h", false), func(o *metav1.PartialObjectMetadata) {
			o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Unknown", Name: "h2", UID: "h2"})
		}), obj("Quiet ns/quiet"), obj("Part ns/live", owned("Quiet quiet", true)))
}

func TestForeground(t *testing.T) {
	bubble(t, func(w *world) {
		w.start()
		w.remove("Thing ns/a", inFront)
		// b is held and blocks, n is held and does not; c is gone already.
		w.expect("waits", "a' b'<a n'<a")
		w.release("Part ns/b")
		w.expect("only what blocks is waited for", "n'<a")
		w.release("Part ns/n")
		w.expect("in the end", "")
	}, obj("Thing ns/a"), obj("Part ns/b", owned("Thing a", true), held), obj("Part ns/c", owned("Part b", true)), obj("Part ns/n", owned("Thing a", false), held))
}

// removals notes the names of what is removed, in order. The server that it belongs to
// calls it with its lock held.
type removals struct {
	clienttesting.ObjectTracker
	names []string
}

func (r *removals) Delete(gvr schema.GroupVersionResource, ns, name string, o ...metav1.DeleteOptions) error {
	r.names = append(r.names, name)
	return r.ObjectTracker.Delete(gvr, ns, name, o...)
}

// TestForegroundOrder: dependents go before what they depend on.
func TestForegroundOrder(t *testing.T) {
	bubble(t, func(w *world) {
		removed := &removals{ObjectTracker: w.server.ObjectTracker}
		w.server.ObjectTracker = removed
		w.start()
		w.remove("Thing ns/a", inFront)
		w.expect("in the end", "")
		if !slices.Equal(removed.names, []string{"c", "b", "a"}) {
			w.Errorf("order %v", removed.names)
		}
	}, obj("Thing ns/a"), obj("Part ns/b", owned("Thing a", true)), obj("Part ns/c", owned("Part b", true)))
}

func TestForegroundCycle(t *testing.T) {
	bubble(t, func(w *world) {
		w.start()
		w.remove("Thing ns/a", inFront)
		w.settle()
		w.expect("in the end", "")
	}, obj("Thing ns/a", owned("Part b", true)), obj("Part ns/b", owned("Thing a", true)))
}

// TestForegroundTwice: an owner that is named twice is waited for until neither reference
// blocks.
func TestForegroundTwice(t *testing.T) {
	bubble(t, func(w *world) {
		w.start()
		w.remove("Thing ns/a", inFront)
		w.expect("waits", "a' b'<a<a")
		b := w.all()[1]
		b.OwnerReferences = b.OwnerReferences[:1] // the one that does not block
		if err := w.server.Update(gvrs[b.Kind], b, b.Namespace); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.expect("waits for nothing", "b'<a")
	}, obj("Thing ns/a"), obj("Part ns/b", owned("Thing a", false), owned("Thing a", true), held))
}

func TestOrphan(t *testing.T) {
	bubble(t, func(w *world) {
		w.start()
		w.remove("Thing ns/a", orphaned)
		w.expect("in the end", "b c<e e")
	}, obj("Thing ns/a"), obj("Part ns/b", owned("Thing a", true)), obj("Part ns/c", owned("Thing a", true), owned("Thing e", true)), obj("Thing ns/e"))
}

// TestLateDependentOfOrphaned: a dependent that was made before its owner was deleted, and is
// seen only after the owner is gone, is let go as the others were.
func TestLateDependentOfOrphaned(t *testing.T) {
	bubble(t, func(w *world) {
		seen := make(chan struct{})
		w.objects.PrependWatchReactor("parts", func(a clienttesting.Action) (bool, watch.Interface, error) {
			from, err := w.server.Watch(a.GetResource(), a.GetNamespace(), metav1.ListOptions{})
			return true, late{from, seen}, err
		})
		w.start()
		w.create(obj("Part ns/b", owned("Thing a", true)))
		w.create(obj("Part ns/c", owned("Thing a", true), owned("Thing e", true)))
		w.create(obj("Part ns/d", owned("Thing a", true), owned("Thing x", true)))
		w.remove("Thing ns/a", orphaned)
		w.remove("Thing ns/x", background)
		w.expect("the owners are gone", "b<a c<a<e d<a<x e")
		close(seen)
		w.settle()
		w.expect("in the end", "b c<e e")
	}, obj("Thing ns/a"), obj("Thing ns/e"), obj("Thing ns/x"))
}

// late is a watch whose events come once seen is closed.
type late struct {
	watch.Interface
	seen <-chan struct{}
}

func (l late) ResultChan() <-chan watch.Event {
	<-l.seen
	return l.Interface.ResultChan()
}

// TestOrphanAfterRestart: what waited while no collector ran is seen to.
func TestOrphanAfterRestart(t *testing.T) {
	bubble(t, func(w *world) {
		w.remove("Thing ns/a", orphaned)
		w.remove("Thing ns/x", inFront)
		w.expect("before", "a' b<a x' y<x")
		w.start()
		w.expect("after", "b")
	}, obj("Thing ns/a"), obj("Part ns/b", owned("Thing a", true)), obj("Thing ns/x"), obj("Part ns/y", owned("Thing x", true)))
}

// TestNamespaces: an owner in another namespace is none; one in a namespace, of
// what is in none, cannot be told.
func TestNamespaces(t *testing.T) {
	bubble(t, func(w *world) {
		w.start()
		w.expect("in the end", "a h<a n ok<n")
		var events []string
		for len(w.events.Events) > 0 {
			events = append(events, <-w.events.Events)
		}
		slices.Sort(events)
		want := []string{
			`Warning OwnerRefInvalidNamespace ownerRef [example.com/v1/Thing, namespace: ns, name: a, uid: a] does not exist in namespace ""`,
			`Warning OwnerRefInvalidNamespace ownerRef [example.com/v1/Thing, namespace: ns, name: a, uid: a] does not exist in namespace "other"`,
		}
		if events = slices.Compact(events); !slices.Equal(events, want) {
			w.Errorf("events %q", events)
		}
	}, obj("Thing ns/a"), obj("Part other/p", owned("Thing a", true)), obj("Host h", owned("Thing a", true)), obj("Host n"), obj("Part other/ok", owned("Host n", true)))
}

// TestLateOwner: an owner that is created after its dependents were seen is not
// taken for absent, wherever some of them expected it.
func TestLateOwner(t *testing.T) {
	bubble(t, func(w *world) {
		w.objects.PrependReactor("list", "things", func(clienttesting.Action) (bool, runtime.Object, error) {
			if w.disco.Load() == nil {
				return false, nil, nil
			}
			return true, nil, errors.New("not yet")
		})
		var partly error = &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: "down", Version: "v1"}: errors.New("down")}}
		w.disco.Store(&partly)
		w.start()
		<-time.After(DefaultPatience) // then deletions begin although things cannot be listed
		w.settle()
		w.expect("things are not seen yet", "a b<a")
		if n := testutil.ToFloat64(w.metrics); n < 1 {
			w.Errorf("%v failures to tell the kinds are counted", n)
		}
		w.disco.Store(nil)
		<-time.After(2 * time.Minute)
		w.settle()
		w.remove("Thing ns/a", background)
		w.expect("in the end", "")
	}, obj("Thing ns/a"), obj("Part ns/b", owned("Thing a", true)), obj("Part other/c", owned("Thing a", true)))
}

// TestRefusals: what fails is tried again.
func TestRefusals(t *testing.T) {
	bubble(t, func(w *world) {
		w.start()
		left := 3
		refuse := func(clienttesting.Action) (bool, runtime.Object, error) {
			left--
			return left >= 0, nil, errors.New("not now")
		}
		w.objects.PrependReactor("delete", "parts", refuse)
		w.remove("Thing ns/a", background)
		w.expect("in the end", "")
		if left >= 0 {
			w.Errorf("%d refusals were not met", left)
		}
	}, obj("Thing ns/a"), obj("Part ns/b", owned("Thing a", true)))
}
