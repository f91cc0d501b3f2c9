package resourcequota

// Kinds of which only the number of objects matters: they are watched while a quota
// names them.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/quota"
)

// counters watches kinds. keep and end join the watches that they end.
type counters struct {
	*run
	ctx context.Context //nolint:containedctx // that of Run, in which counters are made

	mu      sync.Mutex // guards the following
	running map[schema.GroupResource]*counter
	kinds   map[schema.GroupResource]schema.GroupVersionResource // that there are
	asked   time.Time                                            // when the API server was asked for kinds
}

// A counter watches one kind.
type counter struct {
	gvr    schema.GroupVersionResource
	inf    cache.SharedIndexInformer
	cancel context.CancelFunc
	done   chan struct{}
}

// lister lists the objects of a kind. It is nil as long as they are not known: when they
// are, the quotas that name the kind are counted again. unknown says that the API server
// does not serve the kind, or could not be asked.
func (c *counters) lister(gr schema.GroupResource) (list quota.Lister, unknown bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, false
	}
	if k := c.running[gr]; k != nil {
		if !k.inf.HasSynced() {
			return nil, false
		}
		return inNamespace(k.inf), false
	}
	gvr, ok := c.findLocked(gr)
	if !ok {
		return nil, true
	}
	k, err := c.watch(gvr)
	if err != nil {
		c.log.Warn("cannot count objects", "resource", gr.String(), "error", err)
		return nil, true
	}
	if c.running == nil {
		c.running = make(map[schema.GroupResource]*counter)
	}
	c.running[gr] = k
	return nil, false
}

// findLocked returns the version of a kind that the API server prefers.
func (c *counters) findLocked(gr schema.GroupResource) (schema.GroupVersionResource, bool) {
	gvr, ok := c.kinds[gr]
	if ok || !c.asked.IsZero() && time.Since(c.asked) < c.cfg.Refresh {
		return gvr, ok
	}
	c.discoverLocked()
	gvr, ok = c.kinds[gr]
	return gvr, ok
}

// discoverLocked asks the API server which kinds there are. all tells whether it could say.
func (c *counters) discoverLocked() (all bool) {
	c.asked = time.Now()
	_, lists, err := c.discovery.ServerGroupsAndResources()
	if err != nil {
		c.log.Warn("cannot tell all kinds of object there are; will ask again", "error", err)
		if !discovery.IsGroupDiscoveryFailedError(err) {
			return false
		}
	}
	c.kinds = make(map[schema.GroupResource]schema.GroupVersionResource)
	for _, l := range lists {
		gv, malformed := schema.ParseGroupVersion(l.GroupVersion)
		if malformed != nil {
			continue
		}
		for i := range l.APIResources {
			res := &l.APIResources[i]
			kind := gv.WithResource(res.Name)
			if _, seen := c.kinds[kind.GroupResource()]; !seen && res.Namespaced && slices.Contains(res.Verbs, "list") && slices.Contains(res.Verbs, "watch") {
				c.kinds[kind.GroupResource()] = kind
			}
		}
	}
	return err == nil
}

// watch has quotas counted again that name a kind, when all its objects are known and
// when one of them is deleted.
func (c *counters) watch(gvr schema.GroupVersionResource) (*counter, error) {
	inf := metadatainformer.NewFilteredMetadataInformer(c.objects, gvr, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
	if err := inf.SetTransform(slim); err != nil {
		return nil, fmt.Errorf("watch %s: %w", gvr.Resource, err)
	}
	// The reflector tries again by itself, later and later.
	err := inf.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		c.log.Debug("cannot watch for now", "resource", gvr.Resource, "error", err)
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", gvr.Resource, err)
	}
	matches := func(names []corev1.ResourceName) bool {
		return slices.ContainsFunc(names, func(name corev1.ResourceName) bool {
			gr, ok := quota.Counted(name)
			return ok && gr == gvr.GroupResource()
		})
	}
	if _, err := loop.Handle(inf, cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) { c.again(obj, matches) }}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	k := &counter{gvr: gvr, inf: inf, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(k.done)
		// It returns when ctx is done.
		_ = loop.Together(ctx,
			func(ctx context.Context) error { inf.RunWithContext(ctx); return nil },
			func(ctx context.Context) error { c.listed(ctx, inf, matches); return nil })
	}()
	return k, nil
}

// listed has all quotas that name a kind counted as soon as its objects are known.
func (c *counters) listed(ctx context.Context, inf cache.SharedIndexInformer, matches func([]corev1.ResourceName) bool) {
	if !cache.WaitFor(ctx, "", inf.HasSyncedChecker()) {
		return
	}
	quotas, err := c.Controller.lister.List(labels.Everything())
	if err != nil {
		return // a lister of a cache does not fail
	}
	for _, q := range quotas {
		c.again(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: q.Namespace}}, matches)
	}
}

// keep ends the watches of kinds that no quota names, and of versions that the API server
// does not prefer any more and may not serve: such a kind is watched anew when it is counted.
// It lists the quotas while nobody begins a watch: whoever began one had a quota for it that
// is among them.
func (c *counters) keep() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	quotas, err := c.Controller.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list quotas: %w", err)
	}
	named := make(map[schema.GroupResource]bool)
	for _, q := range quotas {
		for name := range q.Spec.Hard {
			if gr, ok := quota.Counted(name); ok {
				named[gr] = true
			}
		}
	}
	c.endLocked(func(gr schema.GroupResource, _ *counter) bool { return !named[gr] })
	if len(c.running) > 0 && c.discoverLocked() {
		c.endLocked(func(gr schema.GroupResource, k *counter) bool { return c.kinds[gr] != k.gvr })
	}
	return nil
}

// end ends all watches.
func (c *counters) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(func(schema.GroupResource, *counter) bool { return true })
}

func (c *counters) endLocked(gone func(schema.GroupResource, *counter) bool) {
	for gr, k := range c.running {
		if gone(gr, k) {
			k.cancel()
			<-k.done
			delete(c.running, gr)
		}
	}
}

// slim keeps of an object what is counted, for there may be many.
func slim(obj any) (any, error) {
	o, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: o.Name, Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion,
	}}, nil
}
