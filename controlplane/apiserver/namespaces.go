// Namespaces are deleted in two steps: deleting one only marks it, and it goes
// once its content has gone and nobody holds it any more.

package apiserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// oneByOne is a store without deletion of whole collections: namespaces are too
// much to lose at once.
type oneByOne interface {
	rest.Getter
	rest.Lister
	rest.CreaterUpdater
	rest.Watcher
	rest.Scoper
	rest.SingularNameProvider
	rest.StorageVersionProvider
	rest.StorageWithReadiness
	rest.ResetFieldsStrategy
}

// namespaceREST is the resource namespaces.
type namespaceREST struct {
	oneByOne
	store *genericregistry.Store
	short []string
}

func newNamespaceREST(r resourceREST) *namespaceREST {
	r.ShouldDeleteDuringUpdate = func(ctx context.Context, key string, obj, old runtime.Object) bool {
		return len(obj.(*corev1.Namespace).Spec.Finalizers) == 0 && genericregistry.ShouldDeleteDuringUpdate(ctx, key, obj, old)
	}
	return &namespaceREST{oneByOne: r.Store, store: r.Store, short: r.short}
}

func (r *namespaceREST) ShortNames() []string { return r.short }

// Delete marks the namespace as terminating; whoever empties it finalizes it.
// It is deleted at once only if nobody holds it.
func (r *namespaceREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, err := r.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := obj.(*corev1.Namespace)
	o, err = pinned(o, ns)
	if err != nil {
		return nil, false, err
	}
	if ns.DeletionTimestamp.IsZero() {
		if ns, err = r.terminate(ctx, name, validate, o); err != nil {
			return nil, false, err
		}
		if len(ns.Spec.Finalizers) > 0 || len(ns.Finalizers) > 0 {
			return ns, false, nil
		}
	}
	if len(ns.Spec.Finalizers) > 0 {
		return ns, false, nil
	}
	return r.store.Delete(ctx, name, validate, o)
}

// pinned is o that can only mean this incarnation of ns.
func pinned(o *metav1.DeleteOptions, ns *corev1.Namespace) (*metav1.DeleteOptions, error) {
	if o == nil {
		o = &metav1.DeleteOptions{}
	} else {
		o = o.DeepCopy()
	}
	if o.Preconditions == nil {
		o.Preconditions = &metav1.Preconditions{}
	}
	if o.Preconditions.UID == nil {
		o.Preconditions.UID = &ns.UID
	} else if *o.Preconditions.UID != ns.UID {
		return nil, conflict(ns.Name, "UID in precondition: %v, UID in object meta: %v", *o.Preconditions.UID, ns.UID)
	}
	if rv := o.Preconditions.ResourceVersion; rv != nil && *rv != ns.ResourceVersion {
		return nil, conflict(ns.Name, "ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *rv, ns.ResourceVersion)
	}
	return o, nil
}

func conflict(name, format string, args ...any) error {
	return apierrors.NewConflict(corev1.Resource("namespaces"), name, fmt.Errorf("Precondition failed: "+format, args...))
}

// terminate sets the deletion time and the phase.
func (r *namespaceREST) terminate(ctx context.Context, name string, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions) (*corev1.Namespace, error) {
	key, err := r.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	only := storage.Preconditions{UID: o.Preconditions.UID, ResourceVersion: o.Preconditions.ResourceVersion}
	out := &corev1.Namespace{}
	mark := storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		ns := obj.(*corev1.Namespace)
		if refused := validate(ctx, ns); refused != nil {
			return nil, refused
		}
		if ns.DeletionTimestamp.IsZero() {
			now := metav1.Now()
			ns.DeletionTimestamp = &now
		}
		ns.Status.Phase = corev1.NamespaceTerminating
		return ns, nil
	})
	err = r.store.Storage.GuaranteedUpdate(ctx, key, out, false, &only, mark, dryrun.IsDryRun(o.DryRun), nil)
	if err != nil {
		err = storeerr.InterpretGetError(err, corev1.Resource("namespaces"), name)
		err = storeerr.InterpretUpdateError(err, corev1.Resource("namespaces"), name)
		return nil, err
	}
	return out, nil
}

// finalizeStrategy is namespaces/finalize: only spec.finalizers are written.
type finalizeStrategy struct{ *strategy }

func (finalizeStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (finalizeStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	obj.(*corev1.Namespace).Status = old.(*corev1.Namespace).Status
}

func (s finalizeStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.resets("status")
}

// finalizeREST only updates.
type finalizeREST struct {
	sub *subREST
}

func (r *finalizeREST) New() runtime.Object { return r.sub.New() }
func (*finalizeREST) Destroy()              {}

func (r *finalizeREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.sub.Update(ctx, name, info, create, update, force, o)
}

func (r *finalizeREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.sub.GetResetFields()
}
