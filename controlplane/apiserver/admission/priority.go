// Priorities of pods by the names of their classes.

package admission

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
)

// Priority turns a pod's priority class into the number and the preemption policy
// that schedulers read, and refuses pods that give a number of their own. A pod that
// is written anew without them keeps both; to change them is not its to allow. It
// refuses a second default class.
func Priority() admission.Interface {
	p := &priority{}
	p.pods = onPods(p.resolve, admission.Create, admission.Update)
	return p
}

type priority struct {
	*pods
	client  kubernetes.Interface
	classes schedulinglisters.PriorityClassLister
}

// SetExternalKubeClientSet and SetExternalKubeInformerFactory are called by the
// server when it makes the chain.
func (p *priority) SetExternalKubeClientSet(c kubernetes.Interface) { p.client = c }

func (p *priority) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	classes := f.Scheduling().V1().PriorityClasses()
	p.classes = classes.Lister()
	p.SetReadyFunc(classes.Informer().HasSynced)
}

func (p *priority) ValidateInitialization() error {
	if p.client == nil || p.classes == nil {
		return errors.New("priority: no client")
	}
	return nil
}

func (p *priority) resolve(ctx context.Context, a admission.Attributes, pod *corev1.Pod) error {
	if a.GetOperation() == admission.Update {
		keep(a, pod)
		return nil
	}
	if !p.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	class, err := p.classOf(ctx, pod)
	if apierrors.IsNotFound(err) {
		return admission.NewForbidden(a, fmt.Errorf("no PriorityClass with name %v was found", pod.Spec.PriorityClassName))
	}
	if err != nil {
		return fault("priority class "+pod.Spec.PriorityClassName, err)
	}
	value, policy := int32(0), corev1.PreemptLowerPriority
	if class != nil {
		pod.Spec.PriorityClassName = class.Name
		value = class.Value
		if class.PreemptionPolicy != nil {
			policy = *class.PreemptionPolicy
		}
	}
	if pod.Spec.Priority != nil && *pod.Spec.Priority != value {
		return admission.NewForbidden(a, fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *pod.Spec.Priority, value))
	}
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy != policy {
		return admission.NewForbidden(a, fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *pod.Spec.PreemptionPolicy, policy))
	}
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = &value, &policy
	return nil
}

// Validate implements admission.ValidationInterface. It asks the server: the cache may not know
// a class that was just made.
func (p *priority) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != schedulingv1.Resource("priorityclasses") || a.GetSubresource() != "" {
		return nil
	}
	class, ok := a.GetObject().(*schedulingv1.PriorityClass)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a PriorityClass: %T", a.GetObject()))
	}
	if old, ok := a.GetOldObject().(*schedulingv1.PriorityClass); !class.GlobalDefault || ok && old.GlobalDefault {
		return nil
	}
	all, err := p.client.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fault("priority classes", err)
	}
	for i := range all.Items {
		if other := &all.Items[i]; other.GlobalDefault && other.Name != class.Name {
			return admission.NewForbidden(a, fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist", other.Name))
		}
	}
	return nil
}

// keep gives pod what it leaves out and had before.
func keep(a admission.Attributes, pod *corev1.Pod) {
	old, ok := a.GetOldObject().(*corev1.Pod)
	if !ok {
		return
	}
	if pod.Spec.Priority == nil {
		pod.Spec.Priority = old.Spec.Priority
	}
	if pod.Spec.PreemptionPolicy == nil {
		pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
	}
}

// classOf is the class the pod names, or else the default one; nil if there is
// none. The cache may not know a class that was just made: then the server does.
func (p *priority) classOf(ctx context.Context, pod *corev1.Pod) (*schedulingv1.PriorityClass, error) {
	if name := pod.Spec.PriorityClassName; name != "" {
		class, err := p.classes.Get(name)
		if apierrors.IsNotFound(err) {
			class, err = p.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
		}
		return class, err
	}
	all, err := p.classes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var found *schedulingv1.PriorityClass
	for _, c := range all {
		// Two that are made at the same time can both be the default; the lower one is
		// the less harmful.
		if c.GlobalDefault && (found == nil || c.Value < found.Value) {
			found = c
		}
	}
	return found, nil
}
