// What a row of the resource table can say.

package apiserver

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A row describes one resource kept in the store. The zero value of each flag is
// what most resources want.
type row struct {
	gv        schema.GroupVersion
	kind      string
	plural    string
	singular  string
	short     []string // kubectl's abbreviations
	inAll     bool     // a part of "kubectl get all"
	cluster   bool     // not in a namespace
	newObject func() runtime.Object
	newList   func() runtime.Object

	status      bool // has a status subresource, and a Status field that only it writes
	ownStatus   bool // the creator may set the status too, as a kubelet does to its Node
	generation  bool // metadata.generation counts the changes of Spec
	conditional bool // an update must name the resource version it changes
	upsert      bool // an update of what does not exist creates it
	orphans     bool // dependents stay by default when it is deleted
	ttl         bool // objects expire, see Config.EventTTL

	fields  func(obj runtime.Object) fields.Set // beyond metadata.name and metadata.namespace
	indexed string                              // the field whose watchers are found by index, not by search

	// The hooks run before validation, on an object that is the request's own.
	// old must not be changed.
	onCreate func(ctx context.Context, obj runtime.Object)
	onUpdate func(ctx context.Context, obj, old runtime.Object)
	onStatus func(ctx context.Context, obj, old runtime.Object)
	// statusResets are fields beside spec that a write to the status
	// subresource leaves alone; onStatus puts them back.
	statusResets []string
	// grace sets options.GracePeriodSeconds and says whether the object goes
	// gracefully. nil means never.
	grace func(obj runtime.Object, options *metav1.DeleteOptions) bool
}

func (r *row) gvk() schema.GroupVersionKind { return r.gv.WithKind(r.kind) }

func (r *row) gr() schema.GroupResource {
	return schema.GroupResource{Group: r.gv.Group, Resource: r.plural}
}

// selectable is the set of field labels that obj's kind can be selected by.
func (r *row) selectable() fields.Set { return r.fieldsOf(r.newObject()) }

// fieldsOf are the values of the selectable fields of obj.
func (r *row) fieldsOf(obj runtime.Object) fields.Set {
	var set fields.Set
	if r.fields != nil {
		set = r.fields(obj)
	} else {
		set = make(fields.Set, 2)
	}
	m := obj.(metav1.Object)
	set["metadata.name"] = m.GetName()
	if !r.cluster {
		set["metadata.namespace"] = m.GetNamespace()
	}
	return set
}

// object is a pointer to T that is an API object.
type object[T any] interface {
	*T
	runtime.Object
}

// of is a row for the object type T with the list type L.
func of[T, L any, P object[T], PL object[L]](gv schema.GroupVersion, kind, plural, singular string, r row) row {
	r.gv, r.kind, r.plural, r.singular = gv, kind, plural, singular
	r.newObject = func() runtime.Object { return P(new(T)) }
	r.newList = func() runtime.Object { return PL(new(L)) }
	return r
}

// The functions below give hooks written for one type the table's type.

func creating[T any, P object[T]](f func(ctx context.Context, obj P)) func(context.Context, runtime.Object) {
	return func(ctx context.Context, obj runtime.Object) { f(ctx, obj.(P)) }
}

func updating[T any, P object[T]](f func(ctx context.Context, obj, old P)) func(context.Context, runtime.Object, runtime.Object) {
	return func(ctx context.Context, obj, old runtime.Object) { f(ctx, obj.(P), old.(P)) }
}

func selecting[T any, P object[T]](f func(obj P) fields.Set) func(runtime.Object) fields.Set {
	return func(obj runtime.Object) fields.Set { return f(obj.(P)) }
}
