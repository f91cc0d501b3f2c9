package kinds

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The resources of a pod as a whole are what Kubernetes' defaults make of them.
func TestPodLevelDefaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, given, want, qos string }{
		{
			"nothing", `{containers: [{name: c, image: "i:1", resources: {requests: {cpu: 1}}}]}`,
			`null`, "Burstable",
		},
		{
			"neither", `{resources: {}, containers: [{name: c, image: "i:1", resources: {requests: {cpu: 1}}}]}`,
			`{}`, "Burstable",
		},
		{
			"requests of containers", `{resources: {limits: {cpu: 4}}, containers: [{name: c, image: "i:1", resources: {requests: {cpu: 1}}}, {name: d, image: "i:1", resources: {requests: {cpu: 1}}}]}`,
			`{limits: {cpu: 4}, requests: {cpu: 2}}`, "Burstable",
		},
		{
			"requests of containers, and of limits", `{resources: {limits: {cpu: 2, memory: 1Gi}}, containers: [{name: c, image: "i:1", resources: {requests: {cpu: 500m}}}, {name: d, image: "i:1", resources: {requests: {cpu: 250m}}}]}`,
			`{limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 750m, memory: 1Gi}}`, "Burstable",
		},
		{
			"requests of limits", `{resources: {limits: {cpu: 4, memory: 1Gi}}, containers: [{name: c, image: "i:1"}]}`,
			`{limits: {cpu: 4, memory: 1Gi}, requests: {cpu: 4, memory: 1Gi}}`, "Guaranteed",
		},
		{
			"limits of containers", `{resources: {requests: {cpu: 2}}, containers: [{name: c, image: "i:1", resources: {limits: {cpu: 1}}}, {name: d, image: "i:1", resources: {limits: {cpu: 2}}}]}`,
			`{limits: {cpu: 3}, requests: {cpu: 2}}`, "Burstable",
		},
		{
			"limits of containers below the request", `{resources: {requests: {cpu: 5}}, containers: [{name: c, image: "i:1", resources: {limits: {cpu: 1}}}]}`,
			`{limits: {cpu: 5}, requests: {cpu: 5}}`, "Burstable",
		},
		{
			"limits of some containers", `{resources: {requests: {cpu: 2}}, initContainers: [{name: i, image: "i:1"}], containers: [{name: c, image: "i:1", resources: {limits: {cpu: 1}}}]}`,
			`{requests: {cpu: 2}}`, "Burstable",
		},
		{
			"huge pages", `{resources: {requests: {cpu: 2}}, containers: [{name: c, image: "i:1", resources: {limits: {hugepages-2Mi: 4Mi}}}]}`,
			`{limits: {hugepages-2Mi: 4Mi}, requests: {cpu: 2, hugepages-2Mi: 4Mi}}`, "Burstable",
		},
		{
			"other resources", `{resources: {requests: {cpu: 2}}, containers: [{name: c, image: "i:1", resources: {limits: {example.com/a: 1, ephemeral-storage: 1Gi}}}]}`,
			`{requests: {cpu: 2}}`, "Burstable",
		},
	} {
		p := defaulted[corev1.Pod](t, "{metadata: {name: p}, spec: "+c.given+"}")
		newPod(t.Context(), p)
		want := defaulted[corev1.Pod](t, "{spec: {resources: "+c.want+"}}")
		if !equal(p.Spec.Resources, want.Spec.Resources) || string(p.Status.QOSClass) != c.qos {
			t.Errorf("%s: %s, %v; want %s, %v", c.name, p.Status.QOSClass, p.Spec.Resources, c.qos, want.Spec.Resources)
		}
	}
}

// A resize fills them in as well, and keeps what a client leaves out that does not know of them.
func TestPodLevelDefaultsOfResize(t *testing.T) {
	t.Parallel()
	old := defaulted[corev1.Pod](t, `{metadata: {name: p}, spec: {resources: {limits: {cpu: 4}}, containers: [{name: c, image: "i:1", resources: {requests: {cpu: 1, memory: 1Gi}}}]}}`)
	newPod(t.Context(), old)
	kind := pods()
	s := resizeStrategy{&strategy{kind: &kind}}
	p := old.DeepCopy()
	p.Spec.Resources = nil
	s.PrepareForUpdate(t.Context(), p, old)
	if !equal(p.Spec.Resources, old.Spec.Resources) {
		t.Errorf("left out: %v", p.Spec.Resources)
	}
	p = old.DeepCopy()
	p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("cpu", "4", "memory", "2Gi")}
	s.PrepareForUpdate(t.Context(), p, old)
	if want := list("cpu", "1", "memory", "1Gi"); !equal(p.Spec.Resources.Requests, want) {
		t.Errorf("requests %v, want %v", p.Spec.Resources.Requests, want)
	}
}
