// What can be said of a kind.

package kinds

import (
	"context"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// A Kind is one kind of object that is kept in the store, with everything that the API
// knows of it. The zero value of each field is what most kinds want.
type Kind struct {
	gv        schema.GroupVersion
	kind      string
	plural    string
	singular  string
	short     []string // kubectl's abbreviations
	category  string   // a name for kinds of several groups, as in "kubectl get all"
	cluster   bool     // not in a namespace
	newObject func() runtime.Object
	newList   func() runtime.Object

	status       bool // has a status subresource, and a Status field that only it writes
	ownStatus    bool // the creator may set the status too, as a kubelet does to its Node
	generation   bool // metadata.generation counts the changes of Spec
	conditional  bool // an update must name the resource version it changes
	upsert       bool // an update of what does not exist creates it
	orphans      bool // dependents stay by default when it is deleted
	ttl          bool // objects expire, see Config.EventTTL
	anyFinalizer bool // a finalizer needs no domain

	name     apivalidation.ValidateNameFunc                    // nil means a DNS subdomain of at most 253 characters
	rules    Rules                                             // beyond those for names and metadata
	byGroup  map[string]Rules                                  // instead of rules, by the API group of the request
	warnings warner                                            // what a client should know of an object
	defaults func(obj runtime.Object)                          // see AddToScheme; nil means none
	table    func(gr schema.GroupResource) rest.TableConvertor // kubectl's columns; nil means name and age

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

	// scale finds what the scale subresource is about. nil means that there is none.
	scale func(obj runtime.Object) scaleParts
	// storage wraps the storage of the resource itself. nil means that it serves as it is.
	storage func(r resourceREST) rest.Storage
	// more adds the subresources that are neither a status nor a scale, once all has
	// the storage of every kind.
	more func(c *Config, all Storages)
}

// GVK is what the kind is called in the API.
func (k *Kind) GVK() schema.GroupVersionKind { return k.gv.WithKind(k.kind) }

func (k *Kind) gr() schema.GroupResource {
	return schema.GroupResource{Group: k.gv.Group, Resource: k.plural}
}

// selectable is the set of field labels that obj's kind can be selected by.
func (k *Kind) selectable() fields.Set { return k.fieldsOf(k.newObject()) }

// fieldsOf are the values of the selectable fields of obj.
func (k *Kind) fieldsOf(obj runtime.Object) fields.Set {
	var set fields.Set
	if k.fields != nil {
		set = k.fields(obj)
	} else {
		set = make(fields.Set, 2)
	}
	m := obj.(metav1.Object)
	set["metadata.name"] = m.GetName()
	if !k.cluster {
		set["metadata.namespace"] = m.GetNamespace()
	}
	return set
}

// Object is a pointer to T that is an API object.
type Object[T any] interface {
	*T
	runtime.Object
}

// of is the kind of the object type T with the list type L.
func of[T, L any, P Object[T], PL Object[L]](gv schema.GroupVersion, kind, plural, singular string, k Kind) Kind {
	k.gv, k.kind, k.plural, k.singular = gv, kind, plural, singular
	k.newObject = func() runtime.Object { return P(new(T)) }
	k.newList = func() runtime.Object { return PL(new(L)) }
	return k
}

// The functions below give hooks written for one type the type that a Kind wants.

func creating[T any, P Object[T]](f func(ctx context.Context, obj P)) func(context.Context, runtime.Object) {
	return func(ctx context.Context, obj runtime.Object) { f(ctx, obj.(P)) }
}

func updating[T any, P Object[T]](f func(ctx context.Context, obj, old P)) func(context.Context, runtime.Object, runtime.Object) {
	return func(ctx context.Context, obj, old runtime.Object) { f(ctx, obj.(P), old.(P)) }
}

func selecting[T any, P Object[T]](f func(obj P) fields.Set) func(runtime.Object) fields.Set {
	return func(obj runtime.Object) fields.Set { return f(obj.(P)) }
}

// defaulting is for defaults what creating is for hooks.
func defaulting[T any, P Object[T]](f func(obj P)) func(runtime.Object) {
	return func(obj runtime.Object) { f(obj.(P)) }
}
