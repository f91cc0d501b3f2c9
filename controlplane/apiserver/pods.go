// Pods: what the server fills in, how they are deleted, and their subresources
// that change them.

package apiserver

import (
	"context"
	"fmt"
	"maps"
	"net"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/hawser-project/hawser/controlplane/apiserver/defaults"
	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

func podFields(p *corev1.Pod) fields.Set {
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	} else if parsed := net.ParseIP(p.Status.PodIP); parsed != nil {
		ip = parsed.String()
	}
	return fields.Set{
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         fmt.Sprint(p.Spec.HostNetwork),
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             ip,
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

func newPod(_ context.Context, p *corev1.Pod) {
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: defaults.QOSClass(p)}
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		}}
	}
	// The service account goes by two names, an old one and a new one.
	if p.Spec.ServiceAccountName == "" {
		p.Spec.ServiceAccountName = p.Spec.DeprecatedServiceAccount
	}
	p.Spec.DeprecatedServiceAccount = p.Spec.ServiceAccountName
}

// updatePod: ephemeral containers have a subresource of their own.
func updatePod(_ context.Context, p, old *corev1.Pod) {
	p.Spec.EphemeralContainers = old.Spec.EphemeralContainers
}

// podStatus keeps what kubelets have been known to write by mistake, and what
// only the server decides.
func podStatus(_ context.Context, p, old *corev1.Pod) {
	p.DeletionTimestamp = nil
	p.OwnerReferences = old.OwnerReferences
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = old.Status.QOSClass
	}
}

// podGrace: a pod's processes get the time to end that its spec gives them,
// unless there can be none: it was never given a node, or has ended. Those of a mirror
// pod do not end with it, so nobody waits for its node.
func podGrace(obj runtime.Object, o *metav1.DeleteOptions) bool {
	p := obj.(*corev1.Pod)
	period := int64(corev1.DefaultTerminationGracePeriodSeconds)
	switch {
	case o.GracePeriodSeconds != nil:
		period = *o.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded || kinds.IsMirror(p) {
		period = 0
	}
	if period < 0 {
		period = 1
	}
	o.GracePeriodSeconds = &period
	return true
}

// bindingREST is pods/binding: how the scheduler gives a pod its node.
type bindingREST struct {
	pods *genericregistry.Store
}

func (*bindingREST) New() runtime.Object { return &corev1.Binding{} }
func (*bindingREST) Destroy()            {}

// Create binds the pod name to the node that obj names.
func (r *bindingREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	b, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding: %T", obj))
	}
	if b.Name != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("name in URL (%s) does not match name in Binding object (%s)", name, b.Name))
	}
	if errs := kinds.ValidatePodBinding(b); len(errs) > 0 {
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

func (legacyBindingREST) NamespaceScoped() bool   { return true }
func (legacyBindingREST) GetSingularName() string { return "binding" }
func (r legacyBindingREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	m, ok := obj.(metav1.Object)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding: %T", obj))
	}
	return r.bindingREST.Create(ctx, m.GetName(), obj, validate, o)
}

// ephemeralStrategy is pods/ephemeralcontainers: only those are written.
type ephemeralStrategy struct{ *strategy }

func (ephemeralStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (s ephemeralStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, was := obj.(*corev1.Pod), old.(*corev1.Pod)
	containers := p.Spec.EphemeralContainers
	p.Spec, p.Status = *was.Spec.DeepCopy(), was.Status
	p.Spec.EphemeralContainers = containers
	s.bump(p, was)
}

func (ephemeralStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return kinds.ValidatePodEphemeralContainersUpdate(obj.(*corev1.Pod), old.(*corev1.Pod))
}

// resizeStrategy is pods/resize: only the resources of the pod and its containers are written.
type resizeStrategy struct{ *strategy }

func (resizeStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (s resizeStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, was := obj.(*corev1.Pod), old.(*corev1.Pod)
	asked := p.Spec
	p.Spec, p.Status = *was.Spec.DeepCopy(), was.Status
	p.Spec.Resources = asked.Resources
	resize(p.Spec.Containers, asked.Containers)
	resize(p.Spec.InitContainers, asked.InitContainers)
	s.bump(p, was)
}

// ValidateUpdate checks the whole pod: a resize can break any rule about
// resources. The class it was scheduled and is evicted by must stay.
func (resizeStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	p, was := obj.(*corev1.Pod), old.(*corev1.Pod)
	errs := kinds.ValidatePodResize(p, was)
	if defaults.QOSClass(p) != defaults.QOSClass(was) {
		errs = append(errs, field.Invalid(field.NewPath("spec"), defaults.QOSClass(p), "Pod QOS Class may not change as a result of resizing"))
	}
	return errs
}

func resize(have, asked []corev1.Container) {
	for i := range have {
		for _, a := range asked {
			if a.Name == have[i].Name {
				have[i].Resources, have[i].ResizePolicy = a.Resources, a.ResizePolicy
			}
		}
	}
}
