// This file has the sources of a Runner: the pods of the API and the containers of the
// runtime.

package pods

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/node/runtime"
)

// A source keeps the pods that the API binds to the node, by uid. Some of them are
// mirrors of static pods.
type source struct {
	cfg     Config
	changed func()

	mu     sync.Mutex
	pods   map[types.UID]*corev1.Pod
	synced bool
}

func newSource(cfg Config, changed func()) *source {
	return &source{cfg: cfg, changed: changed, pods: map[types.UID]*corev1.Pod{}}
}

// WatchBackoff is the back-off of a node's lists and watches: from 0.5 s, doubled each
// time, up to 10 s, each with up to half more at random. It is short so that a node that
// was disconnected soon gets the changes that it has missed.
func WatchBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Cap: 10 * time.Second, Factor: 2, Jitter: 0.5, Steps: 16}
}

// run watches until ctx is done, whenever the fence is down. Failures are retried
// as WatchBackoff says.
func (s *source) run(ctx context.Context) {
	s.cfg.Fence.While(ctx, func(ctx context.Context) {
		s.watch(ctx)
		s.forget() // changes are not seen without a watch
	})
}

func (s *source) watch(ctx context.Context) {
	selector := fields.OneTermEqualSelector("spec.nodeName", s.cfg.NodeName).String()
	api := s.cfg.API.Pods(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (apiruntime.Object, error) {
			o.FieldSelector = selector
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return api.Watch(ctx, o)
		},
	}
	// A client in memory does not implement all requests of the reflector.
	lister := cache.ToListWatcherWithWatchListSemantics(lw, s.cfg.API)
	r := cache.NewReflectorWithOptions(lister, &corev1.Pod{}, s, cache.ReflectorOptions{Name: "pods", Backoff: WatchBackoff()})
	r.RunWithContext(ctx)
}

func (s *source) forget() {
	s.mu.Lock()
	s.pods, s.synced = map[types.UID]*corev1.Pod{}, false
	s.mu.Unlock()
	s.changed()
}

// snapshot returns the pods of the API that are to run, and whether the list is complete.
func (s *source) snapshot() (map[types.UID]*corev1.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pods := make(map[types.UID]*corev1.Pod, len(s.pods))
	for uid, p := range s.pods {
		if !isMirror(p) {
			pods[uid] = p
		}
	}
	return pods, s.synced
}

// mirrors returns the mirrors of static pods, by name, and whether the list is complete.
func (s *source) mirrors() (map[types.NamespacedName]*corev1.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mirrors := map[types.NamespacedName]*corev1.Pod{}
	for _, p := range s.pods {
		if isMirror(p) {
			mirrors[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = p
		}
	}
	return mirrors, s.synced
}

// Add implements cache.ReflectorStore.
func (s *source) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s *source) Update(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("watch pods: got %T", obj)
	}
	s.mu.Lock()
	if p.Spec.NodeName == s.cfg.NodeName {
		s.pods[p.UID] = p
	}
	s.mu.Unlock()
	s.changed()
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *source) Delete(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("watch pods: got %T", obj)
	}
	s.mu.Lock()
	delete(s.pods, p.UID)
	s.mu.Unlock()
	s.changed()
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *source) Replace(list []any, _ string) error {
	pods := make(map[types.UID]*corev1.Pod, len(list))
	for _, obj := range list {
		p, ok := obj.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("list pods: got %T", obj)
		}
		if p.Spec.NodeName == s.cfg.NodeName {
			pods[p.UID] = p
		}
	}
	s.mu.Lock()
	s.pods, s.synced = pods, true
	s.mu.Unlock()
	s.changed()
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do.
func (s *source) Resync() error { return nil }

// A lister lists the runtime's containers for any number of callers at once. Each gets
// a listing that started after its call, and at most one is under way.
type lister struct {
	list func(context.Context) ([]runtime.ContainerStatus, error)

	mu      sync.Mutex
	current *listing // under way
	next    *listing // starts when current has ended
}

type listing struct {
	done   chan struct{} // closed after result and err are set
	result map[types.UID][]runtime.ContainerStatus
	err    error
}

// listTimeout bounds one listing.
const listTimeout = 30 * time.Second

// get returns the containers of each pod, newest attempts first. Containers without a
// pod are left out. The result is shared: callers do not change it.
func (l *lister) get(ctx context.Context) (map[types.UID][]runtime.ContainerStatus, error) {
	l.mu.Lock()
	mine, lead := l.next, false
	if mine == nil {
		mine, lead = &listing{done: make(chan struct{})}, true
		l.next = mine
	}
	before := l.current
	l.mu.Unlock()
	if lead {
		// The first caller does the work for those that call meanwhile, also when its own
		// context is done.
		if before != nil {
			<-before.done
		}
		l.do(context.WithoutCancel(ctx), mine)
	}
	select {
	case <-mine.done:
		return mine.result, mine.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *lister) do(ctx context.Context, mine *listing) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	l.mu.Lock()
	l.current, l.next = mine, nil
	l.mu.Unlock()
	all, err := l.list(ctx)
	mine.err = err
	mine.result = map[types.UID][]runtime.ContainerStatus{}
	for _, c := range all {
		if owned(&c) {
			mine.result[c.Pod.UID] = append(mine.result[c.Pod.UID], c)
		}
	}
	for _, list := range mine.result {
		slices.SortFunc(list, func(a, b runtime.ContainerStatus) int { return b.Attempt - a.Attempt })
	}
	close(mine.done)
}
