// This file has the limits of a pod as a whole.

package downward

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Limited reports whether a pod as a whole has a limit of a resource: one of its own, or one of
// each of its containers.
func Limited(pod *corev1.Pod, name corev1.ResourceName) bool {
	if q := podLimit(pod, name); !q.IsZero() {
		return true
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if q := list[i].Resources.Limits[name]; q.IsZero() {
				return false
			}
		}
	}
	return true
}

// podLimit is the limit of a resource that the pod has as a whole; zero for none.
func podLimit(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	if pod.Spec.Resources == nil {
		return resource.Quantity{}
	}
	return pod.Spec.Resources.Limits[name]
}
