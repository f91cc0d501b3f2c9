// pods/binding and bindings: how the scheduler gives a pod its node.

package kinds

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
)

// bindingREST is pods/binding: how the scheduler gives a pod its node.
type bindingREST struct {
	pods *genericregistry.Store
}

func (*bindingREST) New() runtime.Object { return &corev1.Binding{} }

func (*bindingREST) Destroy() {}

// Create binds the pod name to the node that obj names.
func (r *bindingREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	b, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding: %T", obj))
	}
	if b.Name != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("name in URL (%s) does not match name in Binding object (%s)", name, b.Name))
	}
	if errs := validatePodBinding(b); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Binding").GroupKind(), b.Name, errs)
	}
	if validate != nil {
		if err := validate(ctx, b.DeepCopy()); err != nil {
			return nil, err
		}
	}
	key, err := r.pods.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	var only *storage.Preconditions
	if b.UID != "" || b.ResourceVersion != "" {
		only = &storage.Preconditions{}
		if b.UID != "" {
			only.UID = &b.UID
		}
		if b.ResourceVersion != "" {
			only.ResourceVersion = &b.ResourceVersion
		}
	}
	bind := storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return bound(obj.(*corev1.Pod), b) })
	err = r.pods.Storage.GuaranteedUpdate(ctx, key, &corev1.Pod{}, false, only, bind, dryrun.IsDryRun(o.DryRun), nil)
	if err != nil {
		return nil, bindingError(storeerr.InterpretGetError(err, corev1.Resource("pods"), name), name)
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate: the UID and the
// version in the binding are preconditions, not to be replaced.
func (*bindingREST) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// bound is p given to the node of b, or an error saying why it cannot be. What
// the binding carries along comes to the pod. The generation stays: it counts
// what users ask for, and a pod that runs as it was made is still at its first.
func bound(p *corev1.Pod, b *corev1.Binding) (*corev1.Pod, error) {
	switch {
	case p.DeletionTimestamp != nil:
		return nil, fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", p.Name)
	case p.Spec.NodeName != "":
		return nil, fmt.Errorf("pod %v is already assigned to node %q", p.Name, p.Spec.NodeName)
	case len(p.Spec.SchedulingGates) != 0:
		return nil, fmt.Errorf("pod %v has non-empty .spec.schedulingGates", p.Name)
	}
	p.Spec.NodeName = b.Target.Name
	p.Status.NominatedNodeName = ""
	p.Annotations = merged(p.Annotations, b.Annotations)
	p.Labels = merged(p.Labels, b.Labels)
	setScheduled(p)
	return p, nil
}

// merged is have with more written over it.
func merged(have, more map[string]string) map[string]string {
	if have == nil {
		return maps.Clone(more)
	}
	maps.Copy(have, more)
	return have
}

func setScheduled(p *corev1.Pod) {
	c := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), ObservedGeneration: p.Generation}
	for i := range p.Status.Conditions {
		if old := &p.Status.Conditions[i]; old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			*old = c
			return
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
}

// bindingError makes a refusal by bound a conflict.
func bindingError(err error, name string) error {
	if _, ok := err.(apierrors.APIStatus); ok {
		return err
	}
	return apierrors.NewConflict(corev1.Resource("pods/binding"), name, err)
}

// legacyBindingREST is the resource bindings: pods/binding with the name in the
// object.
type legacyBindingREST struct {
	*bindingREST
}

func (legacyBindingREST) NamespaceScoped() bool { return true }

func (legacyBindingREST) GetSingularName() string { return "binding" }

func (r legacyBindingREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	m, ok := obj.(metav1.Object)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding: %T", obj))
	}
	return r.bindingREST.Create(ctx, m.GetName(), obj, validate, o)
}

// validatePodBinding checks a binding, which puts a pod on a node. The pod gets its annotations,
// and is no mirror pod: those have a node when they are made.
func validatePodBinding(b *corev1.Binding) field.ErrorList {
	errs := mirrorUnchanged(b.Annotations, nil)
	if k := b.Target.Kind; k != "" && k != "Node" {
		errs = append(errs, field.NotSupported(field.NewPath("target", "kind"), k, []string{"Node", "<empty>"}))
	}
	return append(errs, required(b.Target.Name, field.NewPath("target", "name"))...)
}
