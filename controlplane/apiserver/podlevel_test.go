package apiserver_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a pod requests as a whole counts what admission gives its containers.
func TestPodLevelResourcesAfterAdmission(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	pods := shared.client.CoreV1().Pods(ns)
	cpu := func(q string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q)}
	}
	must(shared.client.CoreV1().LimitRanges(ns).Create(ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, DefaultRequest: cpu("100m"),
	}}}}, metav1.CreateOptions{}))(t)
	until(t, "the limit range is known", func() bool {
		p := pod("")
		p.GenerateName = "w-"
		return len(must(pods.Create(ctx, p, metav1.CreateOptions{}))(t).Spec.Containers[0].Resources.Requests) > 0
	})
	p := pod("two")
	p.Spec.Resources = &corev1.ResourceRequirements{Limits: cpu("2")}
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "more", Image: "busybox", Resources: corev1.ResourceRequirements{Requests: cpu("500m")}})
	if p = must(pods.Create(ctx, p, metav1.CreateOptions{}))(t); p.Spec.Resources.Requests.Cpu().String() != "600m" || p.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("%s, requests %v", p.Status.QOSClass, p.Spec.Resources.Requests)
	}
	// A client that does not know of them leaves them out.
	p.Spec.Resources, p.Labels = nil, map[string]string{"a": "b"}
	if p = must(pods.Update(ctx, p, metav1.UpdateOptions{}))(t); p.Spec.Resources == nil || p.Labels["a"] != "b" || p.Generation != 1 {
		t.Errorf("generation %d, labels %v, resources %v", p.Generation, p.Labels, p.Spec.Resources)
	}
}
