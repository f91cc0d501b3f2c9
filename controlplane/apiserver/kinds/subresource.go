// Subresources that are another way to write the same object.

package kinds

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// subREST reads and updates the objects of a store by a strategy of its own.
type subREST struct {
	store *genericregistry.Store
}

// newSub is a subresource of what is in of, written through s. The hooks of the
// resource itself do not run.
func newSub(of *genericregistry.Store, s rest.UpdateResetFieldsStrategy) *subREST {
	store := *of
	store.UpdateStrategy, store.ResetFieldsStrategy = s, s
	store.BeginCreate, store.BeginUpdate, store.AfterUpdate = nil, nil, nil
	return &subREST{store: &store}
}

func (r *subREST) New() runtime.Object { return r.store.New() }

// Destroy does nothing: the store belongs to the resource.
func (*subREST) Destroy() {}

func (r *subREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, o)
}

// Update never creates: a subresource of nothing cannot be written.
func (r *subREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, o)
}

func (r *subREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

func (r *subREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}
