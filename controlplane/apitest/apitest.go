// Package apitest is an API server made of maps, for tests of controllers in
// fake time.
//
// The fake clientset of client-go keeps objects as they are given to it. What
// controllers rely on is what a real server adds: uids, generated names,
// resource versions and the refusal of stale ones, generations, status as a
// thing apart, deletion that waits for finalizers and for a pod's grace period.
// A Server adds just that. What it is not: it checks nothing, defaults nothing
// and knows no other subresource than status.
package apitest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

// DefaultGrace is how long a pod that names no other time may take to end.
const DefaultGrace = 30 * time.Second

// A Server holds objects.
type Server struct {
	clienttesting.ObjectTracker

	mu   sync.Mutex // one write at a time
	last int64      // guarded by mu: the last number given to a version, uid or name
}

// New returns a clientset onto a new server that holds objs.
func New(objs ...runtime.Object) (*fake.Clientset, *Server, error) {
	s := &Server{ObjectTracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
	client := &fake.Clientset{}
	s.Serve(&client.Fake)
	for _, o := range objs {
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, nil, err
		}
		s.admit(m)
		if err := s.Add(o); err != nil {
			return nil, nil, fmt.Errorf("add %s: %w", m.GetName(), err)
		}
	}
	return client, s, nil
}

// Serve makes s answer what f is asked.
func (s *Server) Serve(f *clienttesting.Fake) {
	plain := clienttesting.ObjectReaction(s)
	f.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if u, ok := a.(clienttesting.UpdateActionImpl); ok {
			if err := s.apart(u); err != nil {
				return true, nil, err
			}
		}
		ok, obj, err := plain(a)
		if _, updated := a.(clienttesting.UpdateActionImpl); updated && apierrors.IsNotFound(err) && obj == nil {
			return s.gone(a, err)
		}
		return ok, obj, err
	})
	f.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		var o metav1.ListOptions
		if w, ok := a.(clienttesting.WatchActionImpl); ok {
			o = w.ListOptions
		}
		w, err := s.Watch(a.GetResource(), a.GetNamespace(), o)
		return err == nil, w, err
	})
}

// gone: an update that took the last finalizer away removed the object, and was
// answered with it nevertheless.
func (*Server) gone(a clienttesting.Action, err error) (bool, runtime.Object, error) {
	u, _ := a.(clienttesting.UpdateActionImpl)
	if m, bad := meta.Accessor(u.GetObject()); bad == nil && ending(m) {
		return true, u.GetObject(), nil
	}
	return true, nil, err
}

// apart keeps the status out of updates of the object and all else out of
// updates of the status.
func (s *Server) apart(u clienttesting.UpdateActionImpl) error {
	m, err := meta.Accessor(u.GetObject())
	if err != nil {
		return err
	}
	was, err := s.Get(u.GetResource(), u.GetNamespace(), m.GetName())
	if err != nil {
		return err
	}
	to := runtime.DefaultUnstructuredConverter
	is, err := to.ToUnstructured(u.GetObject())
	if err != nil {
		return err
	}
	old, err := to.ToUnstructured(was)
	if err != nil {
		return err
	}
	keep := []string{"status"}
	if u.GetSubresource() == "status" {
		keep = []string{"spec"}
	}
	for _, k := range keep {
		if v, ok := old[k]; ok {
			is[k] = v
		} else {
			delete(is, k)
		}
	}
	// What a field that is absent now held before must not remain.
	fresh, err := scheme.Scheme.New(schema.FromAPIVersionAndKind(s.kindOf(u.GetObject())))
	if err != nil {
		return err
	}
	if err := to.FromUnstructured(is, fresh); err != nil {
		return err
	}
	return assign(u.GetObject(), fresh)
}

func (*Server) kindOf(o runtime.Object) (apiVersion, kind string) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil || len(kinds) == 0 {
		return "", ""
	}
	return kinds[0].ToAPIVersionAndKind()
}

// admit gives a new object what a server gives it.
func (s *Server) admit(m metav1.Object) {
	s.last++
	n := strconv.FormatInt(s.last, 10)
	if m.GetUID() == "" {
		m.SetUID(types.UID("uid-" + n))
	}
	if m.GetName() == "" {
		m.SetName(m.GetGenerateName() + "x" + n)
	}
	if born := m.GetCreationTimestamp(); born.IsZero() {
		m.SetCreationTimestamp(metav1.Now())
	}
	if m.GetGeneration() == 0 {
		m.SetGeneration(1)
	}
	m.SetResourceVersion(n)
}

// Create implements clienttesting.ObjectTracker.
func (s *Server) Create(gvr schema.GroupVersionResource, obj runtime.Object, ns string, o ...metav1.CreateOptions) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.SetResourceVersion("")
	s.admit(m)
	return s.ObjectTracker.Create(gvr, obj, ns, o...)
}

// Update implements clienttesting.ObjectTracker.
func (s *Server) Update(gvr schema.GroupVersionResource, obj runtime.Object, ns string, _ ...metav1.UpdateOptions) error {
	return s.change(gvr, obj, ns)
}

// Patch implements clienttesting.ObjectTracker. obj is the outcome.
func (s *Server) Patch(gvr schema.GroupVersionResource, obj runtime.Object, ns string, _ ...metav1.PatchOptions) error {
	return s.change(gvr, obj, ns)
}

func (s *Server) change(gvr schema.GroupVersionResource, obj runtime.Object, ns string) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was, err := s.Get(gvr, ns, m.GetName())
	if err != nil {
		return err
	}
	old, err := meta.Accessor(was)
	if err != nil {
		return err
	}
	if m.GetUID() == "" { // whoever names neither takes the object as it is
		m.SetUID(old.GetUID())
		m.SetCreationTimestamp(old.GetCreationTimestamp())
	}
	if v := m.GetResourceVersion(); v != "" && v != old.GetResourceVersion() || m.GetUID() != old.GetUID() {
		return apierrors.NewConflict(gvr.GroupResource(), m.GetName(), errors.New("the object has been modified"))
	}
	m.SetDeletionTimestamp(old.GetDeletionTimestamp())
	m.SetGeneration(old.GetGeneration())
	if changed, err := specChanged(obj, was); err != nil {
		return err
	} else if changed {
		m.SetGeneration(old.GetGeneration() + 1)
	}
	return s.storeLocked(gvr, obj, m, ns)
}

// storeLocked stores obj, or removes it if that is all it was waiting for: then
// watchers hear of no change before, as from a real server.
func (s *Server) storeLocked(gvr schema.GroupVersionResource, obj runtime.Object, m metav1.Object, ns string) error {
	s.last++
	if ending(m) {
		return s.ObjectTracker.Delete(gvr, ns, m.GetName())
	}
	m.SetResourceVersion(strconv.FormatInt(s.last, 10))
	return s.ObjectTracker.Update(gvr, obj, ns)
}

// ending tells whether nothing holds an object that is being deleted.
func ending(m metav1.Object) bool {
	grace := m.GetDeletionGracePeriodSeconds()
	return m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 && (grace == nil || *grace == 0)
}

func specChanged(a, b runtime.Object) (bool, error) {
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(a)
	if err != nil {
		return false, err
	}
	was, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		return false, err
	}
	for _, field := range []string{"spec", "endpoints", "ports"} { // an EndpointSlice has no spec
		if fmt.Sprint(is[field]) != fmt.Sprint(was[field]) {
			return true, nil
		}
	}
	return false, nil
}

// Delete implements clienttesting.ObjectTracker.
func (s *Server) Delete(gvr schema.GroupVersionResource, ns, name string, os ...metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	obj, err := s.Get(gvr, ns, name)
	if err != nil {
		return err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	var o metav1.DeleteOptions
	if len(os) > 0 {
		o = os[0]
	}
	if p := o.Preconditions; p != nil && (p.UID != nil && *p.UID != m.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != m.GetResourceVersion()) {
		return apierrors.NewConflict(gvr.GroupResource(), name, errors.New("precondition failed"))
	}
	m.SetFinalizers(propagation(m.GetFinalizers(), o.PropagationPolicy))
	grace := gracePeriod(obj, o.GracePeriodSeconds)
	if old := m.GetDeletionGracePeriodSeconds(); m.GetDeletionTimestamp() == nil || old != nil && grace < *old {
		m.SetDeletionTimestamp(&metav1.Time{Time: time.Now().Add(time.Duration(grace) * time.Second)})
		m.SetDeletionGracePeriodSeconds(&grace)
	}
	return s.storeLocked(gvr, obj, m, ns)
}

// propagation is the finalizers of an object deleted with a policy.
func propagation(have []string, p *metav1.DeletionPropagation) []string {
	if p == nil {
		return have
	}
	have = slices.DeleteFunc(slices.Clone(have), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
	switch *p {
	case metav1.DeletePropagationForeground:
		have = append(have, metav1.FinalizerDeleteDependents)
	case metav1.DeletePropagationOrphan:
		have = append(have, metav1.FinalizerOrphanDependents)
	}
	return have
}

// gracePeriod is how many seconds obj may take to go: none unless it is a pod on
// a node that has not ended.
func gracePeriod(obj runtime.Object, asked *int64) int64 {
	p, ok := obj.(*corev1.Pod)
	switch {
	case !ok || p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return 0
	case asked != nil:
		return *asked
	case p.Spec.TerminationGracePeriodSeconds != nil:
		return *p.Spec.TerminationGracePeriodSeconds
	}
	return int64(DefaultGrace / time.Second)
}

// assign makes dst, which is a pointer, point to what src points to.
func assign(dst, src runtime.Object) error {
	d, v := reflect.ValueOf(dst), reflect.ValueOf(src)
	if d.Type() != v.Type() {
		return fmt.Errorf("a %T is no %T", src, dst)
	}
	d.Elem().Set(v.Elem())
	return nil
}
