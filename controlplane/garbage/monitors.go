package garbage

// Watching every kind of object there is.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// A kind is a resource and what its objects are called.
type kind struct {
	schema.GroupVersionResource
	kind string
}

// kinds says how to find an object by what a reference says of it.
type kinds struct {
	mu sync.Mutex
	by map[schema.GroupVersionKind]place // guarded by mu
}

type place struct {
	schema.GroupVersionResource
	namespaced bool
}

// find returns where objects of a kind are.
func (k *kinds) find(apiVersion, name string) (place, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return place{}, fmt.Errorf("read the version of a reference: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if p, ok := k.by[gv.WithKind(name)]; ok {
		return p, nil
	}
	return place{}, fmt.Errorf("the API server knows no kind %s in %s", name, apiVersion)
}

func (k *kinds) set(by map[schema.GroupVersionKind]place, all bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if all || k.by == nil {
		k.by = by
		return
	}
	maps.Copy(k.by, by)
}

// ignored are kinds whose objects come and go in numbers and own nothing.
var ignored = []schema.GroupResource{{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}}

// discover asks the API server which kinds there are. It returns those that can
// be watched and deleted, in the version that the server prefers. If some groups
// cannot be asked about, all is false.
func (r *run) discover() (watchable map[kind]bool, all bool, err error) {
	_, lists, err := r.discovery.ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, false, fmt.Errorf("ask which kinds there are: %w", err)
	}
	all = err == nil
	by := make(map[schema.GroupVersionKind]place)
	watchable = make(map[kind]bool)
	seen := make(map[schema.GroupResource]bool)
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return nil, false, fmt.Errorf("read a version: %w", err)
		}
		for i := range l.APIResources {
			res := &l.APIResources[i]
			if strings.Contains(res.Name, "/") {
				continue
			}
			gvr := gv.WithResource(res.Name)
			by[gv.WithKind(res.Kind)] = place{gvr, res.Namespaced}
			can := func(verb string) bool { return slices.Contains(res.Verbs, verb) }
			if can("list") && can("watch") && can("delete") && !seen[gvr.GroupResource()] && !slices.Contains(ignored, gvr.GroupResource()) {
				seen[gvr.GroupResource()] = true
				watchable[kind{gvr, res.Kind}] = true
			}
		}
	}
	r.kinds.set(by, all)
	return watchable, all, nil
}

// monitors watches kinds. It belongs to one goroutine.
type monitors struct {
	*run
	running map[kind]*monitor
}

// A monitor watches one kind.
type monitor struct {
	listed cache.InformerSynced // the graph knows of all objects that there were
	cancel context.CancelFunc
	done   chan struct{}
}

// keep watches every kind there is until ctx is done, and calls listed once it
// knows the objects of all that there were at first.
func (m *monitors) keep(ctx context.Context, listed func()) error {
	defer m.drop(func(kind) bool { return true })
	for {
		err := m.refresh(ctx)
		if err != nil {
			m.metrics.syncErrors.Inc()
			m.log.Warn("cannot tell which kinds of object there are; those known are kept", "error", err)
		}
		if err == nil || errors.Is(err, errPartial) {
			listed()
		}
		t := time.NewTimer(m.cfg.Refresh)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

var errPartial = errors.New("some groups of the API cannot be asked")

// refresh begins to watch kinds that are new and ends that of kinds that are
// gone. Deletions wait meanwhile, but not for ever.
func (m *monitors) refresh(ctx context.Context) error {
	want, all, err := m.discover()
	if err != nil {
		return err
	}
	if all {
		m.drop(func(k kind) bool { return !want[k] })
	}
	var started []*monitor
	for k := range want {
		if m.running[k] == nil {
			mon, err := m.watch(ctx, k)
			if err != nil {
				return err
			}
			m.running[k] = mon
			started = append(started, mon)
		}
	}
	if len(started) > 0 {
		m.await(ctx, started)
	}
	if !all {
		return errPartial
	}
	return nil
}

// await lets nothing be deleted until the objects of new kinds are known.
func (m *monitors) await(ctx context.Context, started []*monitor) {
	m.listing.Lock()
	defer m.listing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Patience)
	defer cancel()
	var synced []cache.InformerSynced
	for _, mon := range started {
		synced = append(synced, mon.listed)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) && ctx.Err() != nil {
		m.log.Debug("some kinds are not listed yet")
	}
}

// drop ends the watching of kinds.
func (m *monitors) drop(gone func(kind) bool) {
	for k, mon := range m.running {
		if gone(k) {
			mon.cancel()
			<-mon.done
			delete(m.running, k)
		}
	}
}

// watch tells the graph of every object of a kind. drop ends and joins it.
func (m *monitors) watch(ctx context.Context, k kind) (*monitor, error) {
	inf := metadatainformer.NewFilteredMetadataInformer(m.objects, k.GroupVersionResource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	if err := inf.SetTransform(slim); err != nil {
		return nil, fmt.Errorf("watch %s: %w", k.Resource, err)
	}
	// The reflector tries again by itself, later and later.
	err := inf.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		m.log.Debug("cannot watch for now", "resource", k.GroupResource().String(), "error", err)
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", k.Resource, err)
	}
	id := func(o *metav1.PartialObjectMetadata) identity {
		return identity{k.GroupVersion().String(), k.kind, o.Namespace, o.Name, o.UID}
	}
	seen := func(obj any) {
		if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
			m.do(m.graph.observe(id(o), o))
		}
	}
	reg, err := inf.AddEventHandler(loop.Guard(cache.ResourceEventHandlerFuncs{
		AddFunc: seen,
		UpdateFunc: func(was, is any) {
			// A name that was given away in between is another object.
			old, ok := was.(*metav1.PartialObjectMetadata)
			if now, also := is.(*metav1.PartialObjectMetadata); ok && also && old.UID != now.UID {
				m.do(m.graph.forget(old.UID))
			}
			seen(is)
		},
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
				m.do(m.graph.forget(o.UID))
			}
		},
	}))
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", k.Resource, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	mon := &monitor{listed: reg.HasSynced, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(mon.done)
		inf.RunWithContext(ctx)
	}()
	return mon, nil
}

// slim keeps of an object what the graph needs, for there may be many.
func slim(obj any) (any, error) {
	o, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: o.Name, Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion,
		DeletionTimestamp: o.DeletionTimestamp, Finalizers: o.Finalizers, OwnerReferences: o.OwnerReferences,
	}}, nil
}

// unsure marks an error as a reason to ask again later.
func unsure(format string, args ...any) error { return loop.Quiet(fmt.Errorf(format, args...)) }
