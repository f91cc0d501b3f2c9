package loop

// What feeds queues from informers.

import (
	"fmt"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// WithoutManagers is a transform for informers: it drops who wrote which field. An object
// that is written without that keeps what the API has of it.
func WithoutManagers(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// Watch calls add with the key (namespace/name, or name) of every object of inf,
// and again whenever one is added, changed or deleted. add must return at once.
// stop ends the calls; the informer goes on for others.
func Watch(inf cache.SharedIndexInformer, add func(key string)) (stop func(), err error) {
	return watch(inf, func(_, _ any) bool { return true }, add)
}

// WatchIf is Watch without the changes that are of no account: concerns is asked
// about the two states of an object. T is what inf holds pointers to.
func WatchIf[T any](inf cache.SharedIndexInformer, concerns func(was, is *T) bool, add func(key string)) (stop func(), err error) {
	return watch(inf, func(was, is any) bool {
		a, ok := was.(*T)
		b, also := is.(*T)
		return !ok || !also || concerns(a, b)
	}, add)
}

func watch(inf cache.SharedIndexInformer, concerns func(was, is any) bool, add func(key string)) (stop func(), err error) {
	seen := func(obj any) {
		if key, bad := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); bad == nil {
			add(key)
		}
	}
	return Handle(inf, cache.ResourceEventHandlerFuncs{
		AddFunc: seen,
		UpdateFunc: func(was, is any) {
			if concerns(was, is) {
				seen(is)
			}
		},
		DeleteFunc: seen,
	})
}

// Handle has h told of the objects of inf until stop is called; the informer goes
// on for others. It fails if inf has stopped.
func Handle(inf cache.SharedIndexInformer, h cache.ResourceEventHandler) (stop func(), err error) {
	reg, err := inf.AddEventHandler(Guard(h))
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return func() { _ = inf.RemoveEventHandler(reg) }, nil
}

// Guard returns h with its panics contained: one costs that event, not the process.
// They are told on klog, as informers tell things, for they belong to no controller.
func Guard(h cache.ResourceEventHandler) cache.ResourceEventHandler { return &guarded{h} }

type guarded struct{ h cache.ResourceEventHandler }

func (g *guarded) OnAdd(obj any, initial bool) { protect(obj, func() { g.h.OnAdd(obj, initial) }) }

func (g *guarded) OnUpdate(was, is any) { protect(is, func() { g.h.OnUpdate(was, is) }) }

func (g *guarded) OnDelete(obj any) { protect(obj, func() { g.h.OnDelete(obj) }) }

func protect(obj any, f func()) {
	Contain(slog.New(logr.ToSlogHandler(klog.Background())), func() string {
		what := fmt.Sprintf("event of %T", obj)
		if o, bad := meta.Accessor(obj); bad == nil {
			what += fmt.Sprintf(" %s/%s", o.GetNamespace(), o.GetName())
		}
		return what
	}, f)
}

// Watches is several watches that end together. The zero value is none.
type Watches struct {
	stops []func()
	err   error
}

// Add takes what Watch and its like return.
func (w *Watches) Add(stop func(), err error) {
	if err == nil {
		w.stops = append(w.stops, stop)
	} else if w.err == nil {
		w.err = err
	}
}

// All returns what stops them all; or, when it has done so, the first error that
// was added.
func (w *Watches) All() (stop func(), err error) {
	stop = func() {
		for _, stop := range w.stops {
			stop()
		}
	}
	if w.err != nil {
		stop()
		return nil, w.err
	}
	return stop, nil
}
