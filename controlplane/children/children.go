// Package children is what controllers that keep objects for an owner have in
// common: finding the objects that are the owner's, adopting and releasing them,
// making and deleting them, and remembering what was done until the cache shows
// it. A child is an object of one kind: a pod of a ReplicaSet, a ReplicaSet of a
// Deployment.
//
// A child belongs to the owner that its one controller reference names by uid. A
// child that has no such reference and whose labels match is adopted, after the
// API server has confirmed that the owner still is who the cache says and is not
// being deleted; a child whose labels no longer match is released. Objects that
// some other object controls are never touched.
//
// A cache lags behind what was just written, and a controller that counts its
// children in a lagging cache makes too many. Children therefore lays its own
// writes over the cache: a child that it made or adopted is there, one that it
// deleted is on its way out, from the moment the server said so. A child that it
// made is dropped from this overlay once the cache has reached that child's
// resource version, whether the child is in it or not; nothing waits, and nothing
// is forgotten by a guess.
//
// What it is not: it does not decide how many children there should be, and it
// does not change them.
package children

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// forget is how long a child that was made is remembered if the cache cannot say
// how far it is.
const forget = 5 * time.Minute

// An Object is an API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// An Owner is an object that children belong to. Selector says which.
type Owner struct {
	Object
	Selector labels.Selector
}

func (o Owner) key() string { return o.GetNamespace() + "/" + o.GetName() }

// A Client writes objects of one kind in one namespace. Those of client-go do.
type Client[T Object] interface {
	Create(ctx context.Context, obj T, o metav1.CreateOptions) (T, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (T, error)
}

// Config configures Children. Informer and Kind are required; so are Client, Noun and
// Live of whom more than Controlled and Watch is asked.
type Config[T Object] struct {
	Client   func(namespace string) Client[T]
	Informer cache.SharedIndexInformer // of the children
	Noun     string                    // what messages call a child
	Kind     schema.GroupVersionKind   // of the owners
	// Live looks an owner up at the API server, not in a cache.
	Live func(ctx context.Context, namespace, name string) (metav1.Object, error)
	// Finalizer is put on children that are adopted and taken off those released.
	Finalizer string
	// Adopt says which children without a controller an owner may adopt. None that is
	// being deleted is. Nil means all others.
	Adopt  func(Owner, T) bool
	Events record.EventRecorder // of children made and deleted; nil means none
}

// Children is the children of all owners of one kind. Its methods may be called
// from any goroutine, for one owner from one at a time.
type Children[T Object] struct {
	cfg  Config[T]
	find func(string) ([]T, error) // see index

	mu     sync.Mutex
	recent map[string]*writes[T] // guarded by mu; by namespace/name of the owner
}

// Pods are children that are pods.
type Pods = Children[*corev1.Pod]

// PodClient is the Client of a Config of Pods.
func PodClient(c kubernetes.Interface) func(namespace string) Client[*corev1.Pod] {
	return func(namespace string) Client[*corev1.Pod] { return c.CoreV1().Pods(namespace) }
}

// writes is what was done for an owner and may not be in the cache yet.
type writes[T Object] struct {
	owner   types.UID
	made    map[types.UID]made[T] // or adopted
	deleted map[types.UID]bool
	freed   map[types.UID]bool // of the finalizer
}

type made[T Object] struct {
	obj T
	at  time.Time
}

// New returns the children in c.Informer, which gets an index if it has it not yet.
// Calls for the same informer must not overlap.
func New[T Object](c Config[T]) (*Children[T], error) {
	find, err := index[T](c.Informer)
	if err != nil {
		return nil, err
	}
	c.Events = loop.Recorder(c.Events)
	return &Children[T]{cfg: c, find: find, recent: make(map[string]*writes[T])}, nil
}

// Controlled returns a func that looks up what inf shows in a namespace as controlled by
// the object with a uid, as loop.Index does. An owner's children are in its namespace:
// anybody may name its uid in an object of another one. The empty uid stands for no controller.
func Controlled[T Object](inf cache.SharedIndexInformer) (func(namespace string, owner types.UID) ([]T, error), error) {
	find, err := index[T](inf)
	return func(namespace string, owner types.UID) ([]T, error) { return find(controlled(namespace, owner)) }, err
}

// index looks up objects by controlled, and those that have no controller by orphansOf
// their namespace.
func index[T Object](inf cache.SharedIndexInformer) (func(string) ([]T, error), error) {
	return loop.Index(inf, "metadata.ownerReferences.controller", func(o T) string {
		if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
			return controlled(o.GetNamespace(), ref.UID)
		}
		return orphansOf(o.GetNamespace())
	})
}

func controlled(namespace string, owner types.UID) string { return namespace + "/" + string(owner) }

// orphansOf is controlled by nobody. The API server takes no reference without a uid.
func orphansOf(namespace string) string { return controlled(namespace, "") }

// Of returns the children that belong to o, in no particular order, whatever state
// they are in. It adopts and releases children first; if that fails for some the
// others are returned along with the error. The children must not be changed.
func (c *Children[T]) Of(ctx context.Context, o Owner) ([]T, error) {
	// The version is read before the cache: what is younger may be missing.
	version := c.cfg.Informer.GetStore().LastStoreSyncResourceVersion()
	have, err := c.Controlled(o.GetNamespace(), o.GetUID())
	if err != nil {
		return nil, err
	}
	have, released := c.release(ctx, o, have)
	failed := c.adopt(ctx, o)
	return c.overlay(o, have, version), errors.Join(released, failed)
}

// Controlled returns the children that the cache shows in a namespace as controlled by
// the object with this uid.
func (c *Children[T]) Controlled(namespace string, owner types.UID) ([]T, error) {
	return c.find(controlled(namespace, owner))
}

// overlay lays what was written for o over have, which the cache showed when it had
// reached version, and forgets what the cache has caught up with.
func (c *Children[T]) overlay(o Owner, have []T, version string) []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.recent[o.key()]
	if w == nil || w.owner != o.GetUID() {
		return have
	}
	shown := make(map[types.UID]bool, len(have))
	for _, child := range have {
		shown[child.GetUID()] = true
	}
	for uid, m := range w.made {
		if shown[uid] || m.reached(version) {
			delete(w.made, uid)
			continue
		}
		have, shown[uid] = append(have, m.obj), true
	}
	for i, child := range have {
		have[i] = w.apply(child, c.cfg.Finalizer)
	}
	for _, set := range []map[types.UID]bool{w.deleted, w.freed} {
		for uid := range set {
			if !shown[uid] {
				delete(set, uid)
			}
		}
	}
	if len(w.made)+len(w.deleted)+len(w.freed) == 0 {
		delete(c.recent, o.key())
	}
	return have
}

// reached tells whether a cache that is at version has seen m's child be made.
func (m *made[T]) reached(version string) bool {
	c, err := resourceversion.CompareResourceVersion(version, m.obj.GetResourceVersion())
	if err != nil {
		return time.Since(m.at) > forget
	}
	return c >= 0
}

// apply returns child as it is after what was done to it.
func (w *writes[T]) apply(child T, finalizer string) T {
	uid := child.GetUID()
	if w.deleted[uid] {
		if child.GetDeletionTimestamp() != nil {
			delete(w.deleted, uid)
		} else {
			child = clone(child)
			now := metav1.Now()
			child.SetDeletionTimestamp(&now)
		}
	}
	if w.freed[uid] {
		if i := slices.Index(child.GetFinalizers(), finalizer); i < 0 {
			delete(w.freed, uid)
		} else {
			child = clone(child)
			child.SetFinalizers(slices.Delete(child.GetFinalizers(), i, i+1))
		}
	}
	return child
}

func clone[T Object](obj T) T {
	out, _ := obj.DeepCopyObject().(T) // a copy is of the same type
	return out
}

// Forget drops what is remembered of the owner at key (namespace/name), which is
// gone.
func (c *Children[T]) Forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.recent, key)
}

// note calls f with what is remembered of o.
func (c *Children[T]) note(o Owner, f func(*writes[T])) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.recent[o.key()]
	if w == nil || w.owner != o.GetUID() {
		w = &writes[T]{owner: o.GetUID(), made: make(map[types.UID]made[T]), deleted: make(map[types.UID]bool), freed: make(map[types.UID]bool)}
		c.recent[o.key()] = w
	}
	f(w)
}

// Remembered returns the keys (namespace/name) of the owners for which something
// was written that the cache has not been seen to show. It is for tests.
func (c *Children[T]) Remembered() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.recent))
}
