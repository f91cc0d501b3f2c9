// Shared parts: a watch cache keeps what the versions of an object have in common once.

package apiserver

import (
	"context"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// sharedParts is the store below a watch cache. The cache keeps the versions of the last 75 seconds
// at least: of a Lease ten, which differ in a time and a resource version. What a version has
// in common with the one before it refers to that one. The cache never changes an object.
type sharedParts struct{ storage.Interface }

// Watch implements storage.Interface.
func (s sharedParts) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	below, err := s.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	w := &sharedPartsWatch{Interface: below, events: make(chan watch.Event), stopped: make(chan struct{})}
	go w.run(ctx) // until below ends, Stop is called or ctx is done
	return w, nil
}

// A sharedPartsWatch is a watch whose objects share what they have in common with the version
// before.
type sharedPartsWatch struct {
	watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	once    sync.Once
}

// ResultChan implements watch.Interface.
func (w *sharedPartsWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface.
func (w *sharedPartsWatch) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.Interface.Stop()
}

func (w *sharedPartsWatch) run(ctx context.Context) {
	defer close(w.events)
	last := make(map[types.NamespacedName]runtime.Object)
	for e := range w.Interface.ResultChan() {
		object := e.Object
		if dated, ok := object.(storage.WatchEventWithRecordTime); ok {
			object = dated.Unwrap()
		}
		if m, ok := object.(metav1.Object); ok && e.Type != watch.Bookmark {
			name := types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
			if was := last[name]; was != nil {
				share(reflect.ValueOf(object), reflect.ValueOf(was))
			}
			last[name] = object
			if e.Type == watch.Deleted {
				delete(last, name)
			}
		}
		select {
		case w.events <- e:
		case <-w.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}

// share replaces the parts of is, which no other goroutine has yet, by equal parts of was.
// Both have the same type.
func share(is, was reflect.Value) {
	switch is.Kind() {
	case reflect.Struct:
		for i := range is.NumField() {
			if f := is.Field(i); f.CanSet() {
				share(f, was.Field(i))
			}
		}
	case reflect.String, reflect.Map:
		shareWhole(is, was)
	case reflect.Pointer:
		if !is.IsNil() && !was.IsNil() && !shareWhole(is, was) {
			share(is.Elem(), was.Elem())
		}
	case reflect.Slice:
		if !shareWhole(is, was) && is.Type().Elem().Kind() != reflect.Uint8 {
			for i := range min(is.Len(), was.Len()) {
				share(is.Index(i), was.Index(i))
			}
		}
	}
}

// shareWhole is share for all of is or nothing.
func shareWhole(is, was reflect.Value) bool {
	equal := is.CanSet() && reflect.DeepEqual(is.Interface(), was.Interface())
	if equal {
		is.Set(was)
	}
	return equal
}
