// Storages: a kind made into REST storage.

package kinds

import (
	"context"
	"fmt"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
)

// Storages is REST storage, by group and by path.
type Storages map[schema.GroupVersion]map[string]rest.Storage

// Add puts r under path.
func (s Storages) Add(gv schema.GroupVersion, path string, r rest.Storage) {
	if s[gv] == nil {
		s[gv] = make(map[string]rest.Storage)
	}
	s[gv][path] = r
}

// Store is the store of a kind's resource; nil if there is none.
func (s Storages) Store(gv schema.GroupVersion, plural string) *genericregistry.Store {
	switch r := s[gv][plural].(type) {
	case resourceREST:
		return r.Store
	case interface{ stored() *genericregistry.Store }:
		return r.stored()
	}
	return nil
}

// Destroy gives up what the storages hold.
func (s Storages) Destroy() {
	for _, group := range s {
		for _, r := range group {
			r.Destroy()
		}
	}
}

// A Config is what the storage of kinds is made with.
type Config struct {
	Scheme   *runtime.Scheme
	Options  generic.RESTOptionsGetter
	EventTTL time.Duration        // how long objects of kinds that expire are kept
	Tokens   *accounttoken.Issuer // nil means that there is no serviceaccounts/token
}

// NewStorages makes the storage of all kinds and their subresources, which the caller
// destroys. What it has made by the time of an error is destroyed again.
func NewStorages(c Config) (all Storages, err error) {
	all = make(Storages)
	defer func() {
		if err != nil {
			all.Destroy()
		}
	}()
	list := All()
	for i := range list {
		k := &list[i]
		r, err := k.resource(&c)
		if err != nil {
			return all, err
		}
		if k.storage != nil {
			all.Add(k.gv, k.plural, k.storage(r))
		} else {
			all.Add(k.gv, k.plural, r)
		}
		if k.status {
			all.Add(k.gv, k.plural+"/status", newSub(r.Store, statusStrategy{strategyOf(r.Store)}))
		}
		if k.scale != nil {
			all.Add(k.gv, k.plural+"/scale", &scaleREST{store: r.Store, gv: k.gv, parts: k.scale})
		}
	}
	for i := range list {
		if more := list[i].more; more != nil {
			more(&c, all)
		}
	}
	return all, nil
}

// strategyOf is the strategy of the resource that lies in store.
func strategyOf(store *genericregistry.Store) *strategy { return store.UpdateStrategy.(*strategy) }

// resourceREST is a stored resource with what discovery says of it.
type resourceREST struct {
	*genericregistry.Store
	short, categories []string
}

func (r resourceREST) ShortNames() []string { return r.short }

func (r resourceREST) Categories() []string { return r.categories }

// resource makes the storage of k itself.
func (k *Kind) resource(c *Config) (resourceREST, error) {
	s := newStrategy(c.Scheme, k)
	attrs := func(obj runtime.Object) (labels.Set, fields.Set, error) {
		m, ok := obj.(interface{ GetLabels() map[string]string })
		if !ok {
			return nil, nil, fmt.Errorf("not a %s: %T", k.kind, obj)
		}
		return m.GetLabels(), k.fieldsOf(obj), nil
	}
	store := &genericregistry.Store{
		NewFunc: k.newObject, NewListFunc: k.newList,
		DefaultQualifiedResource:  k.gr(),
		SingularQualifiedResource: schema.GroupResource{Group: k.gv.Group, Resource: k.singular},
		CreateStrategy:            s, UpdateStrategy: s, DeleteStrategy: s, ResetFieldsStrategy: s,
		TableConvertor: k.convertor(),
		PredicateFunc: func(l labels.Selector, f fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: l, Field: f, GetAttrs: attrs, IndexFields: k.indexes()}
		},
	}
	if k.grace != nil {
		store.DeleteStrategy = gracefulStrategy{s}
		store.ReturnDeletedObject = true
	}
	if k.ttl {
		seconds := uint64(c.EventTTL / time.Second)
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return seconds, nil }
	}
	options := &generic.StoreOptions{RESTOptions: c.Options, AttrFunc: attrs}
	if k.indexed != "" {
		value := func(obj runtime.Object) string { return k.fieldsOf(obj)[k.indexed] }
		options.TriggerFunc = storage.IndexerFuncs{k.indexed: value}
		options.Indexers = &cache.Indexers{storage.FieldIndex(k.indexed): func(obj any) ([]string, error) {
			return []string{value(obj.(runtime.Object))}, nil
		}}
	}
	if err := store.CompleteWithOptions(options); err != nil {
		return resourceREST{}, fmt.Errorf("install %s: %w", k.gr(), err)
	}
	out := resourceREST{Store: store, short: k.short}
	if k.category != "" {
		out.categories = []string{k.category}
	}
	return out, nil
}

func (k *Kind) indexes() []string {
	if k.indexed == "" {
		return nil
	}
	return []string{k.indexed}
}

// convertor prints a kind as kubectl's users know it, or as name and age.
func (k *Kind) convertor() rest.TableConvertor {
	if k.table == nil {
		return rest.NewDefaultTableConvertor(k.gr())
	}
	return k.table(k.gr())
}

// Lister lists objects of store.
func Lister[T any, P Object[T]](store *genericregistry.Store) func(context.Context, *metainternalversion.ListOptions) (P, error) {
	return func(ctx context.Context, o *metainternalversion.ListOptions) (P, error) {
		obj, err := store.List(ctx, o)
		if err != nil {
			return nil, err
		}
		p, ok := obj.(P)
		if !ok {
			return nil, fmt.Errorf("store of %s lists a %T", store.DefaultQualifiedResource, obj)
		}
		return p, nil
	}
}

// Getter reads one object from store.
func Getter[T any, P Object[T]](store *genericregistry.Store) func(context.Context, string) (P, error) {
	return func(ctx context.Context, name string) (P, error) {
		obj, err := store.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		p, ok := obj.(P)
		if !ok {
			return nil, fmt.Errorf("store of %s holds a %T", store.DefaultQualifiedResource, obj)
		}
		return p, nil
	}
}

// Asking is ctx for a read of another object than the request's: errors name that one.
func Asking(ctx context.Context, resource, namespace, name string) context.Context {
	return apirequest.WithRequestInfo(apirequest.WithNamespace(ctx, namespace), &apirequest.RequestInfo{
		IsResourceRequest: true, Verb: "get", APIVersion: "v1", Namespace: namespace, Resource: resource, Name: name,
		Parts: []string{resource, name},
	})
}
