// pods/resize: only the resources of the pod and its containers are written.

package kinds

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// resizeStrategy is pods/resize: only the resources of the pod and its containers are written.
type resizeStrategy struct{ *strategy }

func (resizeStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (s resizeStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, was := obj.(*corev1.Pod), old.(*corev1.Pod)
	asked := p.Spec
	p.Spec, p.Status = *was.Spec.DeepCopy(), was.Status
	if asked.Resources != nil { // clients that do not know of them leave them out
		p.Spec.Resources = asked.Resources
	}
	resize(p.Spec.Containers, asked.Containers)
	resize(p.Spec.InitContainers, asked.InitContainers)
	defaultPodLevel(&p.Spec)
	s.bump(p, was)
}

// ValidateUpdate checks the whole pod: a resize can break any rule about
// resources. The class it was scheduled and is evicted by must stay.
func (s resizeStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	p, was := obj.(*corev1.Pod), old.(*corev1.Pod)
	errs := append(s.addedFinalizers(obj, old), validatePodResize(p, was)...)
	if QOSClass(p) != QOSClass(was) {
		errs = append(errs, field.Invalid(field.NewPath("spec"), QOSClass(p), "Pod QOS Class may not change as a result of resizing"))
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

// validatePodResize checks a change through the resize subresource, which can only change
// resources. Its caller checks that the pod's QoS class stays.
func validatePodResize(pod, old *corev1.Pod) field.ErrorList {
	if _, ok := old.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "windows pods cannot be resized")}
	}
	spec := field.NewPath("spec")
	errs := ratchet(podItself(pod), podItself(old))
	if !resizable(old) {
		errs = append(errs, field.Forbidden(spec, "Pod running on node without support for resize"))
	}
	errs = append(errs, podResized(pod, old, spec.Child("resources"))...)
	errs = append(errs, resized(pod.Spec.Containers, old.Spec.Containers, spec.Child("containers"))...)
	at := spec.Child("initContainers")
	errs = append(errs, resized(pod.Spec.InitContainers, old.Spec.InitContainers, at)...)
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; !isSidecar(c) && !equal(c, &old.Spec.InitContainers[i]) && slices.ContainsFunc(c.ResizePolicy, restarts) {
			errs = append(errs, field.Forbidden(at.Index(i), "non-sidecar init containers with a resize policy of RestartContainer cannot be resized"))
		}
	}
	return errs
}

// resizable tells whether the pod's node can resize it: one that can says what a container
// that runs has. A pod without a node can be resized. One that waits on its node cannot: the
// node has decided that it fits, and others are refused for what it asks for.
func resizable(pod *corev1.Pod) bool {
	if s := runs(pod); s != nil {
		return s.Resources != nil
	}
	return pod.Spec.NodeName == ""
}

// runs is the status of a container of pod that runs, nil for none.
func runs(pod *corev1.Pod) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].State.Running != nil {
				return &list[i]
			}
		}
	}
	return nil
}

// podResized checks the resources of the pod as a whole. A node that can change them says what
// the pod has.
func podResized(pod, old *corev1.Pod, p *field.Path) field.ErrorList {
	if equal(pod.Spec.Resources, old.Spec.Resources) {
		return nil
	}
	if old.Spec.NodeName != "" && old.Status.Resources == nil {
		return field.ErrorList{field.Forbidden(p, "Pod running on node without support for resize of pod-level resources")}
	}
	now, was := pod.Spec.Resources, old.Spec.Resources
	if now == nil {
		now = &corev1.ResourceRequirements{}
	}
	if was == nil {
		was = &corev1.ResourceRequirements{}
	}
	return mutable(now, was, p)
}

// resized checks the resources of containers, which are in the same order as before.
func resized(list, before []corev1.Container, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, mutable(&list[i].Resources, &before[i].Resources, p.Index(i).Child("resources"))...)
	}
	return errs
}

// restarts tells whether a container is restarted to be resized.
func restarts(p corev1.ContainerResizePolicy) bool {
	return p.RestartPolicy == corev1.RestartContainer
}

// mutable checks that of the resources was only cpu and memory are others now, and none is left out.
func mutable(now, was *corev1.ResourceRequirements, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if removed(now.Requests, was.Requests) {
		errs = append(errs, field.Forbidden(at.Child("requests"), "resource requests cannot be removed"))
	}
	if removed(now.Limits, was.Limits) {
		errs = append(errs, field.Forbidden(at.Child("limits"), "resource limits cannot be removed"))
	}
	if !equal(otherResources(now), otherResources(was)) {
		errs = append(errs, field.Forbidden(at, "only cpu and memory resources are mutable"))
	}
	return errs
}

// removed tells whether cpu or memory is not in now any more.
func removed(now, was corev1.ResourceList) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		_, is := now[name]
		if _, before := was[name]; before && !is {
			return true
		}
	}
	return false
}

// otherResources are r without cpu and memory.
func otherResources(r *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	r = r.DeepCopy()
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		delete(list, corev1.ResourceCPU)
		delete(list, corev1.ResourceMemory)
	}
	return r
}
