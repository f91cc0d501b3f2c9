package scheduler

// What pods demand and this scheduler does not know.

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// unheeded names the demands of a pod that it may have been bound against. What it
// would only prefer is not among them.
func unheeded(spec *corev1.PodSpec) string {
	var names []string
	if a := spec.Affinity; a != nil {
		if a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			names = append(names, "podAffinity")
		}
		if a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			names = append(names, "podAntiAffinity")
		}
	}
	for i := range spec.TopologySpreadConstraints {
		if spec.TopologySpreadConstraints[i].WhenUnsatisfiable == corev1.DoNotSchedule {
			names = append(names, "topologySpreadConstraints")
			break
		}
	}
	return strings.Join(names, ", ")
}
