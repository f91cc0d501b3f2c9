// The kind Namespace. Namespaces are deleted in two steps: deleting one only marks it, and
// it goes once its content has gone and nobody holds it any more.

package kinds

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

func namespaces() Kind {
	return of[corev1.Namespace, corev1.NamespaceList](corev1.SchemeGroupVersion, "Namespace", "namespaces", "namespace", Kind{
		short: []string{"ns"}, cluster: true, status: true,
		fields: selecting(namespaceFields), onCreate: creating(newNamespace), onUpdate: updating(keepFinalizers), onStatus: updating(namespaceStatus),
		name:     apivalidation.NameIsDNSLabel,
		rules:    Rules{create(validateNamespace), update(validateNamespaceUpdate), update(validateNamespaceStatusUpdate)},
		defaults: defaulting(defaultNamespace),
		table:    namespaceTable,
		storage:  namespaceStorage, more: moreNamespaces,
	})
}

func namespaceFields(ns *corev1.Namespace) fields.Set {
	return fields.Set{"status.phase": string(ns.Status.Phase)}
}

func newNamespace(_ context.Context, ns *corev1.Namespace) {
	ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
	}
	labelNamespace(ns)
}

// keepFinalizers: only the finalize subresource writes them.
func keepFinalizers(_ context.Context, ns, old *corev1.Namespace) {
	ns.Spec.Finalizers = old.Spec.Finalizers
	labelNamespace(ns)
}

func namespaceStatus(_ context.Context, ns, _ *corev1.Namespace) { labelNamespace(ns) }

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

func moreNamespaces(_ *Config, all Storages) {
	v1 := corev1.SchemeGroupVersion
	store := all.Store(v1, "namespaces")
	all.Add(v1, "namespaces/finalize", &finalizeREST{sub: newSub(store, finalizeStrategy{strategyOf(store)})})
}

// namespaceREST is the resource namespaces.
type namespaceREST struct {
	oneByOne
	store *genericregistry.Store
	short []string
}

func namespaceStorage(r resourceREST) rest.Storage {
	r.ShouldDeleteDuringUpdate = func(ctx context.Context, key string, obj, old runtime.Object) bool {
		return len(obj.(*corev1.Namespace).Spec.Finalizers) == 0 && genericregistry.ShouldDeleteDuringUpdate(ctx, key, obj, old)
	}
	return &namespaceREST{oneByOne: r.Store, store: r.Store, short: r.short}
}

func (r *namespaceREST) stored() *genericregistry.Store { return r.store }

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

func (*finalizeREST) Destroy() {}

func (r *finalizeREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.sub.Update(ctx, name, info, create, update, force, o)
}

func (r *finalizeREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.sub.GetResetFields()
}

// labelNamespace sets the label kubernetes.io/metadata.name to the namespace's
// name. It does nothing while the name is still to be generated, so a strategy
// calls it again in its prepare step.
func labelNamespace(o *corev1.Namespace) {
	if o.Name == "" || o.Labels[corev1.LabelMetadataName] == o.Name {
		return
	}
	if o.Labels == nil {
		o.Labels = make(map[string]string, 1)
	}
	o.Labels[corev1.LabelMetadataName] = o.Name
}

func defaultNamespace(o *corev1.Namespace) {
	labelNamespace(o)
	set(&o.Status.Phase, corev1.NamespaceActive)
}

// validateNamespace checks a new namespace.
func validateNamespace(n *corev1.Namespace) field.ErrorList {
	return namespaceFinalizers(n, field.NewPath("spec", "finalizers"))
}

// validateNamespaceUpdate checks a change of a namespace's metadata, and one of its
// finalizers, which change through the finalize subresource only.
func validateNamespaceUpdate(n, _ *corev1.Namespace) field.ErrorList { return validateNamespace(n) }

// validateNamespaceStatusUpdate checks that the phase says whether the
// namespace is being deleted.
func validateNamespaceStatusUpdate(n, _ *corev1.Namespace) field.ErrorList {
	p := field.NewPath("status", "Phase")
	switch {
	case n.DeletionTimestamp == nil && n.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(p, n.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	case n.DeletionTimestamp != nil && n.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(p, n.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	default:
		return nil
	}
}

func namespaceFinalizers(n *corev1.Namespace, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, f := range n.Spec.Finalizers {
		at := p.Index(i)
		errs = append(errs, qualifiedName(string(f), at)...)
		errs = append(errs, finalizer(string(f), at)...)
	}
	return errs
}

func namespaceTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{nameColumn(), text("Status", "The status of the namespace"), ageColumn()},
		func(o *corev1.Namespace, now time.Time) []any {
			return []any{o.Name, string(o.Status.Phase), age(o.CreationTimestamp, now)}
		})
}
