package kinds

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"
)

// FuzzValidatePod decodes any JSON into two pods and holds them against every
// rule there is for pods, with and without defaults. None may panic, and none
// may change the object it looks at.
func FuzzValidatePod(f *testing.F) {
	seed, err := yaml.YAMLToJSON([]byte(podYAML))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, []byte(`{}`))
	f.Add([]byte(`{"spec":{"containers":[{"ports":[{}],"env":[{"valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['']"}}}]}],"volumes":[{}]}}`), seed)
	f.Add([]byte(`{"spec":{"affinity":{"nodeAffinity":{}},"os":{"name":"windows"},"schedulingGates":[{"name":"g"}]}}`), []byte(`{"spec":{"schedulingGates":[{}]}}`))
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var pod, old corev1.Pod
		if json.Unmarshal(a, &pod) != nil || json.Unmarshal(b, &old) != nil {
			return
		}
		allPodRules(t, &pod, &old)
		s.Default(&pod)
		s.Default(&old)
		allPodRules(t, &pod, &old)
	})
}

func allPodRules(t *testing.T, pod, old *corev1.Pod) {
	before := toJSON(t, pod) + toJSON(t, old)
	for _, e := range validatePod(pod) {
		_ = e.Error()
	}
	for _, e := range validatePodUpdate(pod, old) {
		_ = e.Error()
	}
	for _, e := range validatePodStatusUpdate(pod, old) {
		_ = e.Error()
	}
	for _, e := range validatePodEphemeralContainersUpdate(pod, old) {
		_ = e.Error()
	}
	if errs := validatePodUpdate(old, old); len(errs) == 0 && len(validatePodUpdate(pod, old)) == 0 && len(pod.Spec.Containers) != len(old.Spec.Containers) {
		t.Error("an update may change the number of containers")
	}
	if after := toJSON(t, pod) + toJSON(t, old); before != after {
		t.Errorf("validation changed the object from\n%s\nto\n%s", before, after)
	}
}

// TestValidateAnything fills objects of every kind at random and asks every
// rule about them: no shape of an object may make one panic.
func TestValidateAnything(t *testing.T) {
	t.Parallel()
	for _, kind := range everyKind() {
		r := For(kind.gk)
		for seed := range int64(12) {
			fill := randfill.NewWithSeed(seed).NilChance(0.4).NumElements(0, 3).MaxDepth(12).Funcs(
				func(*runtime.Object, randfill.Continue) {},
				func(q *runtime.RawExtension, _ randfill.Continue) { q.Raw = []byte("{}") },
			)
			obj, old := kind.fresh(), kind.fresh()
			fill.Fill(obj)
			fill.Fill(old)
			for _, o := range []runtime.Object{obj, old} {
				if r.Create != nil {
					_ = r.Create(o).ToAggregate()
				}
			}
			if r.Update != nil {
				_ = r.Update(obj, old).ToAggregate()
				_ = r.Update(obj, obj.DeepCopyObject()).ToAggregate()
			}
			if r.Status != nil {
				_ = r.Status(obj, old).ToAggregate()
			}
		}
	}
}
