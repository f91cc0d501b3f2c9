// Defaults of the resources that a pod states as a whole.

package kinds

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// defaultPodLevel fills in the resources that a pod states as a whole (KEP-2837). It is for a pod
// that was admitted: plugins and webhooks give resources to containers, and add containers. Limits
// come after requests, and need them.
func defaultPodLevel(s *corev1.PodSpec) {
	r := s.Resources
	if r == nil || len(r.Limits) == 0 && len(r.Requests) == 0 {
		return
	}
	containers := &corev1.Pod{Spec: corev1.PodSpec{Containers: s.Containers, InitContainers: s.InitContainers}}
	limits := resourcehelper.AggregateContainerLimits(containers, resourcehelper.PodResourcesOptions{})
	for name, q := range limits {
		if _, requested := r.Requests[name]; IsHugePages(name) && !requested {
			fill(&r.Limits, name, q)
		}
	}
	for name, q := range resourcehelper.AggregateContainerRequests(containers, resourcehelper.PodResourcesOptions{}) {
		if !IsHugePages(name) {
			fill(&r.Requests, name, q)
		}
	}
	for name, q := range r.Limits {
		fill(&r.Requests, name, q)
	}
	for name, q := range r.Requests {
		if !limited(s.Containers, name) || !limited(s.InitContainers, name) {
			continue
		}
		if limit := limits[name]; q.Cmp(limit) < 0 {
			q = limit
		}
		fill(&r.Limits, name, q)
	}
}

// fill gives list an amount of name if it has none and pods can state name as a whole.
func fill(list *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if _, has := (*list)[name]; has || !resourcehelper.IsSupportedPodLevelResource(name) {
		return
	}
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = q.DeepCopy()
}

// limited tells whether each of the containers has a limit of name.
func limited(containers []corev1.Container, name corev1.ResourceName) bool {
	return !slices.ContainsFunc(containers, func(c corev1.Container) bool {
		_, has := c.Resources.Limits[name]
		return !has
	})
}
