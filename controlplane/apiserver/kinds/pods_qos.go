// A pod's quality of service class.

package kinds

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// QOSClass is Guaranteed if every container limits cpu and memory and requests
// exactly that, BestEffort if none asks for or limits either, else Burstable.
func QOSClass(p *corev1.Pod) corev1.PodQOSClass {
	if r := p.Spec.Resources; r != nil && (asks(r.Requests) || asks(r.Limits)) {
		return classOf([]corev1.ResourceRequirements{*r})
	}
	var all []corev1.ResourceRequirements
	for _, cs := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range cs {
			all = append(all, cs[i].Resources)
		}
	}
	return classOf(all)
}

func classOf(all []corev1.ResourceRequirements) corev1.PodQOSClass {
	guaranteed, any := true, false
	for _, r := range all {
		any = any || asks(r.Requests) || asks(r.Limits)
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit, request := r.Limits[name], r.Requests[name]
			guaranteed = guaranteed && positive(limit) && limit.Cmp(request) == 0
		}
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

func asks(l corev1.ResourceList) bool {
	return positive(l[corev1.ResourceCPU]) || positive(l[corev1.ResourceMemory])
}

func positive(q resource.Quantity) bool { return q.Sign() > 0 }
