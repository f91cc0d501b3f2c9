// Package children is what controllers that keep pods for an owner have in
// common: finding the pods that are the owner's, adopting and letting go of
// them, making and deleting them, and remembering what was done until the cache
// shows it.
//
// A pod belongs to the owner that its one controller reference names by uid. A
// pod that has no such reference and whose labels match is adopted, after the
// API server has confirmed that the owner still is who the cache says and is not
// being deleted; a pod whose labels no longer match is let go of. Pods that some
// other object controls are never touched.
//
// A cache lags behind what was just written, and a controller that counts its
// pods in a lagging cache makes too many. Pods therefore lays its own writes
// over the cache: a pod that it made or adopted is there, one that it deleted is
// on its way out, from the moment the server said so. A pod it made is dropped
// from this overlay once the cache has reached that pod's resource version,
// whether the pod is in it or not; nothing waits, and nothing is forgotten by a
// guess.
//
// What it is not: it does not decide how many pods there should be.
package children

import (
	"context"
	"errors"
	"fmt"
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

// controllerIndex is the index of pods by the uid of their controller; those
// that have none are under the name of their namespace.
const controllerIndex = "metadata.ownerReferences.controller"

// forget is how long a pod that was made is remembered if the cache cannot say
// how far it is.
const forget = 5 * time.Minute

// An Object is an API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// An Owner is an object that pods belong to. Selector says which.
type Owner struct {
	Object
	Selector labels.Selector
}

func (o Owner) key() string { return o.GetNamespace() + "/" + o.GetName() }

// Config configures Pods. All but Finalizer, Adopt and Events are required.
type Config struct {
	Client kubernetes.Interface
	Pods   cache.SharedIndexInformer
	Kind   schema.GroupVersionKind // of the owners
	// Live looks an owner up at the API server, not in a cache.
	Live func(ctx context.Context, namespace, name string) (metav1.Object, error)
	// Finalizer is put on pods that are adopted and taken off those let go of.
	Finalizer string
	// Adopt says which pods without a controller may be adopted. None that is
	// being deleted is. Nil means all others.
	Adopt  func(*corev1.Pod) bool
	Events record.EventRecorder // nil means none
}

// Pods is the pods of all owners of one kind. Its methods may be called from any
// goroutine, for one owner from one at a time.
type Pods struct {
	cfg Config

	mu     sync.Mutex
	recent map[string]*writes // guarded by mu; by namespace/name of the owner
}

// writes is what was done for an owner and may not be in the cache yet.
type writes struct {
	owner   types.UID
	made    map[types.UID]made // or adopted
	deleted map[types.UID]bool
	freed   map[types.UID]bool // of the finalizer
}

type made struct {
	pod *corev1.Pod
	at  time.Time
}

// New returns the pods in c.Pods, which gets an index if it has it not yet.
// Calls for the same informer must not overlap.
func New(c Config) (*Pods, error) {
	if _, there := c.Pods.GetIndexer().GetIndexers()[controllerIndex]; !there {
		if err := c.Pods.AddIndexers(cache.Indexers{controllerIndex: byController}); err != nil {
			return nil, fmt.Errorf("index pods by controller: %w", err)
		}
	}
	c.Events = loop.Recorder(c.Events)
	return &Pods{cfg: c, recent: make(map[string]*writes)}, nil
}

func byController(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		return []string{string(ref.UID)}, nil
	}
	return []string{orphansOf(p.Namespace)}, nil
}

func orphansOf(namespace string) string { return "orphans/" + namespace }

// Of returns the pods that belong to o, in no particular order, whatever state
// they are in. It adopts and lets go of pods first; if that fails for some the
// others are returned along with the error. The pods must not be changed.
func (p *Pods) Of(ctx context.Context, o Owner) ([]*corev1.Pod, error) {
	// The version is read before the cache: what is younger may be missing.
	version := p.cfg.Pods.GetStore().LastStoreSyncResourceVersion()
	have, err := p.indexed(string(o.GetUID()))
	if err != nil {
		return nil, err
	}
	have, released := p.release(ctx, o, have)
	failed := p.adopt(ctx, o)
	return p.overlay(o, have, version), errors.Join(released, failed)
}

// Controlled returns the pods that the cache shows as controlled by the object
// with this uid.
func (p *Pods) Controlled(owner types.UID) ([]*corev1.Pod, error) { return p.indexed(string(owner)) }

func (p *Pods) indexed(key string) ([]*corev1.Pod, error) {
	objs, err := p.cfg.Pods.GetIndexer().ByIndex(controllerIndex, key)
	if err != nil {
		return nil, fmt.Errorf("look up pods by controller: %w", err)
	}
	out := make([]*corev1.Pod, 0, len(objs))
	for _, obj := range objs {
		if pod, ok := obj.(*corev1.Pod); ok {
			out = append(out, pod)
		}
	}
	return out, nil
}

// overlay lays what was written for o over pods, which the cache showed when
// it had reached version, and forgets what the cache has caught up with.
func (p *Pods) overlay(o Owner, pods []*corev1.Pod, version string) []*corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.recent[o.key()]
	if w == nil || w.owner != o.GetUID() {
		return pods
	}
	shown := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		shown[pod.UID] = true
	}
	for uid, m := range w.made {
		if shown[uid] || reached(version, m) {
			delete(w.made, uid)
			continue
		}
		pods, shown[uid] = append(pods, m.pod), true
	}
	for i, pod := range pods {
		pods[i] = w.apply(pod, p.cfg.Finalizer)
	}
	for _, set := range []map[types.UID]bool{w.deleted, w.freed} {
		for uid := range set {
			if !shown[uid] {
				delete(set, uid)
			}
		}
	}
	if len(w.made)+len(w.deleted)+len(w.freed) == 0 {
		delete(p.recent, o.key())
	}
	return pods
}

// reached tells whether a cache that is at version has seen m's pod be made.
func reached(version string, m made) bool {
	c, err := resourceversion.CompareResourceVersion(version, m.pod.ResourceVersion)
	if err != nil {
		return time.Since(m.at) > forget
	}
	return c >= 0
}

// apply returns pod as it is after what was done to it.
func (w *writes) apply(pod *corev1.Pod, finalizer string) *corev1.Pod {
	if w.deleted[pod.UID] {
		if pod.DeletionTimestamp != nil {
			delete(w.deleted, pod.UID)
		} else {
			pod = pod.DeepCopy()
			now := metav1.Now()
			pod.DeletionTimestamp = &now
		}
	}
	if w.freed[pod.UID] {
		if i := slices.Index(pod.Finalizers, finalizer); i < 0 {
			delete(w.freed, pod.UID)
		} else {
			pod = pod.DeepCopy()
			pod.Finalizers = slices.Delete(pod.Finalizers, i, i+1)
		}
	}
	return pod
}

// Forget drops what is remembered of the owner at key (namespace/name), which is
// gone.
func (p *Pods) Forget(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.recent, key)
}

// note calls f with what is remembered of o.
func (p *Pods) note(o Owner, f func(*writes)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.recent[o.key()]
	if w == nil || w.owner != o.GetUID() {
		w = &writes{owner: o.GetUID(), made: make(map[types.UID]made), deleted: make(map[types.UID]bool), freed: make(map[types.UID]bool)}
		p.recent[o.key()] = w
	}
	f(w)
}

// Remembered returns the keys (namespace/name) of the owners for which something
// was written that the cache has not been seen to show. It is for tests.
func (p *Pods) Remembered() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.recent))
}
