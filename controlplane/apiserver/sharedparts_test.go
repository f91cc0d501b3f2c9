package apiserver

import (
	"context"
	"reflect"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// nodeVersion is a Node as a decoder would make it: no part of it is another's.
func nodeVersion(t *testing.T, edit func(n *corev1.Node)) *corev1.Node {
	t.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "node-1", ResourceVersion: "1", Labels: map[string]string{"a": "b"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1("{}")}},
		},
		Status: corev1.NodeStatus{
			Capacity:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Message: "posts its status", LastHeartbeatTime: metav1.Unix(1, 0)}},
		},
	}
	edit(n)
	return n.DeepCopy()
}

// oneMap says whether two maps are one.
func oneMap(a, b any) bool {
	return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
}

func TestShare(t *testing.T) {
	was := nodeVersion(t, func(*corev1.Node) {})
	change := func(n *corev1.Node) {
		n.ResourceVersion = "2"
		n.Labels["a"] = "c"
		n.Status.Conditions[0].LastHeartbeatTime = metav1.Unix(2, 0)
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure})
		n.Spec.Unschedulable = true
	}
	is, want := nodeVersion(t, change), nodeVersion(t, change)
	before := was.DeepCopy()
	share(reflect.ValueOf(is), reflect.ValueOf(was))
	if !equality.Semantic.DeepEqual(is, want) {
		t.Errorf("the version has become %v, want %v", is, want)
	}
	if !equality.Semantic.DeepEqual(was, before) {
		t.Errorf("the version before has become %v", was)
	}
	if !oneMap(is.Status.Capacity, was.Status.Capacity) || oneMap(is.Labels, was.Labels) {
		t.Error("the capacity is kept twice, or the labels are those of before")
	}
	if &is.ManagedFields[0] != &was.ManagedFields[0] || &is.Status.Conditions[0] == &was.Status.Conditions[0] {
		t.Error("the managed fields are kept twice, or the conditions are those of before")
	}
}

// given is a store whose watch is at hand.
type given struct {
	storage.Interface
	w *watch.FakeWatcher
}

func (g given) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	return g.w, nil
}

func TestSharedParts(t *testing.T) {
	below := watch.NewFake()
	w, err := sharedParts{given{w: below}}.Watch(t.Context(), "", storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node := func() *corev1.Node { return nodeVersion(t, func(*corev1.Node) {}) }
	other := nodeVersion(t, func(n *corev1.Node) { n.Name = "node-2" })
	first, second, last, anew := node(), node(), node(), node()
	for _, e := range []struct {
		send func(runtime.Object)
		obj  runtime.Object
	}{
		{below.Add, first},
		{below.Add, other},
		{below.Modify, second},
		{func(o runtime.Object) { below.Action(watch.Bookmark, o) }, &corev1.Node{}},
		{below.Delete, last},
		{below.Add, anew},
	} {
		e.send(e.obj)
		if n, _ := (<-w.ResultChan()).Object.(*corev1.Node); n != e.obj {
			t.Errorf("%v came out as %v", e.obj, n)
		}
	}
	if !oneMap(second.Labels, first.Labels) || !oneMap(last.Labels, first.Labels) {
		t.Error("versions of an object have nothing in common")
	}
	if oneMap(other.Labels, first.Labels) || oneMap(anew.Labels, first.Labels) {
		t.Error("an object has something in common with another one, or with one that was deleted")
	}
	w.Stop()
	if _, more := <-w.ResultChan(); more {
		t.Error("an event after the end")
	}
}

// A watch that nobody reads any more ends.
func TestSharedPartsStops(t *testing.T) {
	below := watch.NewFakeWithChanSize(1, false)
	w, err := sharedParts{given{w: below}}.Watch(t.Context(), "", storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	below.Add(&coordinationv1.Lease{})
	w.Stop()
	for range w.ResultChan() { // until it is closed
	}
}
