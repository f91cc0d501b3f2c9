package kinds

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestQOSClass(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		return l
	}
	both := corev1.ResourceRequirements{Requests: list("1", "1Gi"), Limits: list("1", "1Gi")}
	for _, c := range []struct {
		name        string
		init, mains []corev1.ResourceRequirements
		pod         *corev1.ResourceRequirements
		want        corev1.PodQOSClass
	}{
		{"nothing", nil, []corev1.ResourceRequirements{{}}, nil, corev1.PodQOSBestEffort},
		{"zero", nil, []corev1.ResourceRequirements{{Requests: list("0", "0")}}, nil, corev1.PodQOSBestEffort},
		{"all of it", nil, []corev1.ResourceRequirements{both, both}, nil, corev1.PodQOSGuaranteed},
		{"cpu only", nil, []corev1.ResourceRequirements{{Requests: list("1", ""), Limits: list("1", "")}}, nil, corev1.PodQOSBurstable},
		{"less than the limit", nil, []corev1.ResourceRequirements{{Requests: list("500m", "1Gi"), Limits: list("1", "1Gi")}}, nil, corev1.PodQOSBurstable},
		{"one without", nil, []corev1.ResourceRequirements{both, {}}, nil, corev1.PodQOSBurstable},
		{"init without", []corev1.ResourceRequirements{{}}, []corev1.ResourceRequirements{both}, nil, corev1.PodQOSBurstable},
		{"same in other words", nil, []corev1.ResourceRequirements{{Requests: list("1000m", "1024Mi"), Limits: list("1", "1Gi")}}, nil, corev1.PodQOSGuaranteed},
		{"the pod says", nil, []corev1.ResourceRequirements{{}}, &both, corev1.PodQOSGuaranteed},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Resources: c.pod}}
		for _, r := range c.init {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Resources: r})
		}
		for _, r := range c.mains {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Resources: r})
		}
		if got := QOSClass(p); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}
