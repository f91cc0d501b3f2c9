package namespace

// Tests of the controller against an API server made of maps, in fake time.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An object of the store: how long it takes to go, and what holds it.
type object struct {
	linger     time.Duration
	finalizers []string
	going      time.Time
}

// store is the objects of one namespace, by resource and name, and a
// metadata.Interface onto them.
type store struct {
	metadata.Interface
	mu      sync.Mutex
	objects map[string]map[string]*object
	fails   map[string]error // by verb and resource
	endless string           // a resource whose list has always another page
	log     []string         // verb and resource of each call
}

func (s *store) Resource(r schema.GroupVersionResource) metadata.Getter {
	return &kindOf{store: s, gr: r.GroupResource()}
}

type kindOf struct {
	metadata.Getter
	store *store
	gr    schema.GroupResource
	ns    string
}

func (k *kindOf) Namespace(ns string) metadata.ResourceInterface {
	return &kindOf{store: k.store, gr: k.gr, ns: ns}
}

func (k *kindOf) call(verb string) error {
	what := verb + " " + k.gr.String()
	k.store.log = append(k.store.log, what)
	return k.store.fails[what]
}

func (k *kindOf) DeleteCollection(_ context.Context, o metav1.DeleteOptions, _ metav1.ListOptions) error {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	if o.PropagationPolicy == nil || *o.PropagationPolicy != metav1.DeletePropagationBackground {
		return fmt.Errorf("propagation %v", o.PropagationPolicy)
	}
	if err := k.call("deletecollection"); err != nil {
		return err
	}
	for name := range k.store.objects[k.gr.String()] {
		k.store.deleteLocked(k.gr.String(), name)
	}
	return nil
}

func (k *kindOf) Delete(_ context.Context, name string, _ metav1.DeleteOptions, _ ...string) error {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	if err := k.call("delete"); err != nil {
		return err
	}
	k.store.deleteLocked(k.gr.String(), name)
	return nil
}

func (s *store) deleteLocked(kind, name string) {
	if o := s.objects[kind][name]; o != nil && o.going.IsZero() {
		o.going = time.Now().Add(o.linger)
	}
}

func (k *kindOf) List(_ context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	if err := k.call("list"); err != nil {
		return nil, err
	}
	if o.Limit <= 0 {
		return nil, errors.New("a list without a limit")
	}
	objs := k.store.objects[k.gr.String()]
	maps.DeleteFunc(objs, func(_ string, o *object) bool {
		return !o.going.IsZero() && !time.Now().Before(o.going) && len(o.finalizers) == 0
	})
	if k.gr.String() == k.store.endless {
		list := &metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Namespace: k.ns, Name: "x"}}}}
		list.Continue = "more"
		return list, nil
	}
	// Two to a page, so that paging is seen to work.
	names := slices.Sorted(maps.Keys(objs))
	names = slices.DeleteFunc(names, func(n string) bool { return n <= o.Continue })
	list := &metav1.PartialObjectMetadataList{}
	if len(names) > 2 {
		names = names[:2]
		list.Continue = names[1]
	}
	for _, n := range names {
		m := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: k.ns, Name: n, Finalizers: objs[n].finalizers}}
		if !objs[n].going.IsZero() {
			now := metav1.Now()
			m.DeletionTimestamp = &now
		}
		list.Items = append(list.Items, m)
	}
	return list, nil
}

func (s *store) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *store) calls(prefix string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.log), func(c string) bool { return !strings.HasPrefix(c, prefix) })
}

func resources() []*metav1.APIResourceList {
	all := metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "watch"}
	return []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Namespaced: true, Verbs: all},
			{Name: "pods", Namespaced: true, Verbs: all},
			{Name: "pods/log", Namespaced: true, Verbs: metav1.Verbs{"get"}},
			{Name: "bindings", Namespaced: true, Verbs: metav1.Verbs{"create"}},
			{Name: "services", Namespaced: true, Verbs: metav1.Verbs{"delete", "get", "list"}},
			{Name: "nodes", Verbs: all},
		}},
		{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "deployments", Namespaced: true, Verbs: all}}},
	}
}

// bench is a running controller.
type bench struct {
	t      *testing.T
	client *fake.Clientset
	store  *store
	stop   func()
}

func start(t *testing.T, ns *corev1.Namespace, s *store) *bench {
	t.Helper()
	return startWith(t, ns, s, Config{Grace: time.Millisecond})
}

func startWith(t *testing.T, ns *corev1.Namespace, s *store, conf Config) *bench {
	t.Helper()
	b := &bench{t: t, client: fake.NewClientset(ns), store: s}
	b.client.Resources = resources()
	b.client.PrependReactor("create", "namespaces", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "finalize" {
			return false, nil, nil
		}
		create, _ := a.(clienttesting.CreateAction)
		now, _ := create.GetObject().(*corev1.Namespace)
		gvr := a.GetResource()
		if len(now.Spec.Finalizers) == 0 {
			return true, now, b.client.Tracker().Delete(gvr, "", now.Name)
		}
		return true, now, b.client.Tracker().Update(gvr, now, "")
	})
	f := informers.NewSharedInformerFactory(b.client, 0)
	c, err := New(loop.Deps{Client: b.client, Objects: s, Informers: f}, conf)
	if err != nil {
		t.Fatal(err)
	}
	c.discovery = preferred{c.discovery, &b.client.Resources, s}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		f.Shutdown()
	}
	return b
}

// preferred answers the one question to discovery that the fake does not.
type preferred struct {
	discovery.DiscoveryInterface
	lists *[]*metav1.APIResourceList
	store *store
}

func (p preferred) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	return discovery.FilteredBy(discovery.ResourcePredicateFunc(func(_ string, r *metav1.APIResource) bool { return r.Namespaced }), *p.lists), p.store.fails["discovery"]
}

// after lets d pass and returns the namespace, or nil.
func (b *bench) after(d time.Duration) *corev1.Namespace {
	b.t.Helper()
	<-time.After(d)
	synctest.Wait()
	ns, err := b.client.CoreV1().Namespaces().Get(b.t.Context(), "ns", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return ns
}

func terminating() *corev1.Namespace {
	now := metav1.Now()
	return &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "ns", UID: types.UID("1"), DeletionTimestamp: &now},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
	}
}

func says(ns *corev1.Namespace, t corev1.NamespaceConditionType) string {
	for _, c := range ns.Status.Conditions {
		if c.Type == t {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return "nothing"
}

func TestEmptyNamespaceGoesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, terminating(), &store{objects: map[string]map[string]*object{}})
		defer b.stop()
		if ns := b.after(time.Second); ns != nil {
			t.Errorf("still there: %+v", ns.Status)
		}
	})
}

func TestLiveNamespaceIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := terminating()
		live.DeletionTimestamp = nil
		s := &store{objects: map[string]map[string]*object{"pods": {"p": {}}}}
		b := start(t, live, s)
		defer b.stop()
		if ns := b.after(time.Hour); ns == nil || len(s.calls("")) > 0 {
			t.Errorf("namespace %v, calls %v", ns, s.calls(""))
		}
	})
}

// TestLateObjectGoes: an object that a server stores soon after its namespace was deleted goes
// with the namespace, also if the controller starts meanwhile.
func TestLateObjectGoes(t *testing.T) {
	for name, starts := range map[string]func(*corev1.Namespace){
		"deleted":            func(ns *corev1.Namespace) { ns.DeletionTimestamp = nil },
		"deleted at a start": func(*corev1.Namespace) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ns, s := terminating(), &store{objects: map[string]map[string]*object{"configmaps": {}}}
				starts(ns)
				b := startWith(t, ns, s, Config{})
				defer b.stop()
				if ns.DeletionTimestamp == nil {
					b.after(time.Minute)
					changed := ns.DeepCopy()
					changed.Labels = map[string]string{"changed": "lately"}
					if _, err := b.client.CoreV1().Namespaces().Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
					b.after(DefaultGrace - time.Second)
					if _, err := b.client.CoreV1().Namespaces().Update(t.Context(), terminating(), metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				b.after(DefaultGrace - 100*time.Millisecond)
				s.change(func() { s.objects["configmaps"]["late"] = &object{} })
				if ns := b.after(time.Second); ns != nil {
					t.Errorf("still there: %+v", ns.Status)
				}
				s.change(func() {
					if left := s.objects["configmaps"]; len(left) > 0 {
						t.Errorf("left behind: %v", left)
					}
				})
			})
		})
	}
}

// TestPodsFirst: what pods use is deleted when they are gone, and the namespace
// says what it waits for.
func TestPodsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{objects: map[string]map[string]*object{
			"pods":             {"a": {linger: 30 * time.Second}, "b": {linger: 5 * time.Second}, "c": {linger: 30 * time.Second}},
			"configmaps":       {"x": {}, "y": {}, "z": {}},
			"services":         {"s": {}, "t": {}, "u": {}},
			"deployments.apps": {"d": {}},
		}}
		b := start(t, terminating(), s)
		defer b.stop()
		ns := b.after(10 * time.Second)
		if ns == nil {
			t.Fatal("gone while pods were in it")
		}
		if got, want := says(ns, corev1.NamespaceContentRemaining), "True SomeResourcesRemain: Some resources are remaining: pods. has 2 resource instances"; got != want {
			t.Errorf("says %q, want %q", got, want)
		}
		for _, other := range []string{"deletecollection configmaps", "delete services", "deletecollection deployments"} {
			if n := len(s.calls(other)); n > 0 {
				t.Errorf("%s while pods remain", other)
			}
		}
		if ns := b.after(40 * time.Second); ns != nil {
			t.Errorf("still there: %+v, %v", ns.Status, s.objects)
		}
		if n := len(s.calls("delete services")); n != 3 {
			t.Errorf("services were deleted with %d calls, want one each", n)
		}
		for _, never := range []string{"deletecollection services", "deletecollection nodes", "list bindings", "list pods/log"} {
			if n := len(s.calls(never)); n > 0 {
				t.Errorf("called: %s", never)
			}
		}
	})
}

func TestFinalizersAreToldAndWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &object{finalizers: []string{"example.com/hold"}}
		s := &store{objects: map[string]map[string]*object{"configmaps": {"x": o}}}
		b := start(t, terminating(), s)
		defer b.stop()
		ns := b.after(10 * time.Minute)
		if ns == nil {
			t.Fatal("gone in spite of a finalizer")
		}
		if got, want := says(ns, corev1.NamespaceFinalizersRemaining), "example.com/hold in 1 resource instances"; !strings.Contains(got, want) {
			t.Errorf("says %q, want %q", got, want)
		}
		if n := len(s.calls("deletecollection pods")); n < 20 || n > 100 {
			t.Errorf("looked %d times in ten minutes, want now and then", n)
		}
		s.change(func() { o.finalizers = nil })
		if ns := b.after(maxRecheck + time.Second); ns != nil {
			t.Errorf("still there: %+v", ns.Status)
		}
	})
}

func TestFailuresAreToldAndRetried(t *testing.T) {
	for name, tc := range map[string]struct {
		fails string
		about corev1.NamespaceConditionType
		says  string
	}{
		"delete":    {"deletecollection deployments.apps", corev1.NamespaceDeletionContentFailure, "True ContentDeletionFailed: Failed to delete all resource types, 1 remaining: deployments.apps: delete all: no"},
		"list":      {"list configmaps", corev1.NamespaceDeletionContentFailure, "configmaps: list: no"},
		"single":    {"delete services", corev1.NamespaceDeletionContentFailure, "services: delete s: no"},
		"discovery": {"discovery", corev1.NamespaceDeletionDiscoveryFailure, "True DiscoveryFailed: Discovery failed for some groups: no"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{objects: map[string]map[string]*object{"services": {"s": {}}, "configmaps": {"x": {}}}, fails: map[string]error{tc.fails: errors.New("no")}}
				b := start(t, terminating(), s)
				defer b.stop()
				ns := b.after(time.Minute)
				if ns == nil {
					t.Fatal("gone in spite of a failure")
				}
				if got := says(ns, tc.about); !strings.Contains(got, tc.says) {
					t.Errorf("says %q, want %q", got, tc.says)
				}
				if n := len(s.objects["configmaps"]); tc.fails == "discovery" && n > 0 {
					t.Errorf("a failure of discovery stopped what was discovered")
				}
				s.change(func() { s.fails = nil })
				if ns := b.after(maxRecheck + time.Second); ns != nil {
					t.Errorf("still there: %+v", ns.Status)
				}
			})
		})
	}
}

// TestEndlessPages: a server whose list has always another page keeps nobody, and the namespace
// goes once the list ends.
func TestEndlessPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{objects: map[string]map[string]*object{}, endless: "deployments.apps"}
		b := start(t, terminating(), s)
		defer b.stop()
		ns := b.after(time.Minute)
		if ns == nil {
			t.Fatal("gone with objects in it")
		}
		if got := says(ns, corev1.NamespaceDeletionContentFailure); !strings.Contains(got, "deployments.apps: list: there are more than 100000 objects") {
			t.Errorf("says %q", got)
		}
		s.change(func() { s.endless = "" })
		if ns := b.after(maxRecheck + time.Second); ns != nil {
			t.Errorf("still there: %+v", ns.Status)
		}
	})
}

// TestOtherFinalizersStay: only ours is taken away.
func TestOtherFinalizersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ns := terminating()
		ns.Spec.Finalizers = append(ns.Spec.Finalizers, "example.com/other")
		b := start(t, ns, &store{objects: map[string]map[string]*object{}})
		defer b.stop()
		ns = b.after(time.Minute)
		if ns == nil || !slices.Equal(ns.Spec.Finalizers, []corev1.FinalizerName{"example.com/other"}) {
			t.Errorf("got %+v", ns)
		}
	})
}

// TestMergeKeepsTransitionTimes: a message that changes is no transition.
func TestMergeKeepsTransitionTimes(t *testing.T) {
	early, late := metav1.NewTime(time.Unix(100, 0)), metav1.NewTime(time.Unix(200, 0))
	first, second, third := &findings{}, &findings{}, &findings{}
	o := &metav1.PartialObjectMetadata{}
	first.remains(corev1.Resource("pods"), o)
	second.remains(corev1.Resource("pods"), o)
	second.remains(corev1.Resource("pods"), o)
	var have []corev1.NamespaceCondition
	if !merge(&have, first.conditions(), early) || len(have) != 5 {
		t.Fatalf("first: %+v", have)
	}
	if merge(&have, first.conditions(), late) {
		t.Error("the same again is a change")
	}
	at := func() *metav1.Time {
		i := slices.IndexFunc(have, func(c corev1.NamespaceCondition) bool { return c.Type == corev1.NamespaceContentRemaining })
		return &have[i].LastTransitionTime
	}
	if !merge(&have, second.conditions(), late) || !at().Equal(&early) {
		t.Errorf("another message: %v", at())
	}
	if !merge(&have, third.conditions(), late) || !at().Equal(&late) {
		t.Errorf("another status: %v", at())
	}
}
