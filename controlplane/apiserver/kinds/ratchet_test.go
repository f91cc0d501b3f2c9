// Tests of updates of what was stored before there was a bound.

package kinds

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestStoredBeforeTheBound: an update that leaves a value beyond its bound is accepted, and one
// that makes it another value beyond the bound is not.
func TestStoredBeforeTheBound(t *testing.T) {
	t.Parallel()
	const tooLong = ": Too long: may not be more than 16384 bytes"
	values := func(n int) []string { return slices.Repeat([]string{"123456789"}, n) } // of 11 bytes each
	selector := func(n int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "NotIn", Values: values(n)}}}
	}
	tolerations := slices.Repeat([]corev1.Toleration{{Operator: "Exists"}}, 1001)

	type pdb = *policyv1.PodDisruptionBudget
	budget := func() pdb {
		b := defaulted[policyv1.PodDisruptionBudget](t, `{metadata: {name: b, resourceVersion: "1"}, spec: {minAvailable: 50%}}`)
		b.Spec.Selector = selector(1600)
		return b
	}
	rules := For(schema.GroupKind{Group: policyv1.GroupName, Kind: "PodDisruptionBudget"})
	b := budget()
	b.Spec.MinAvailable = ptr(intstr.FromString("40%"))
	check(t, rules.Update(b, budget()))
	check(t, rules.Status(b, budget()))
	b = budget()
	b.Spec.Selector = selector(1601)
	check(t, rules.Update(b, budget()), "spec.selector"+tooLong)
	b, small := budget(), budget()
	small.Spec.Selector = selector(1)
	check(t, rules.Update(b, small), "spec.selector"+tooLong)
	check(t, rules.Update(small, b))

	deployment := func() *appsv1.Deployment {
		d := defaulted[appsv1.Deployment](t, `{metadata: {name: d, resourceVersion: "1"}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`)
		d.Spec.Template.Spec.Tolerations = slices.Clone(tolerations)
		term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "NotIn", Values: values(1600)}}}
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}},
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: "zone", LabelSelector: selector(1600)},
			}},
		}
		return d
	}
	update := For(schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}).Update
	d := deployment()
	d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Image = ptr(int32(7)), "j"
	check(t, update(d, deployment()))
	d.Spec.Template.Spec.Tolerations = append(d.Spec.Template.Spec.Tolerations, corev1.Toleration{Operator: "Exists"})
	check(t, update(d, deployment()), "spec.template.spec.tolerations: Too many: 1002: must have at most 1000 items")

	pod := goodPod(t)()
	pod.ResourceVersion, pod.Spec.Tolerations = "1", slices.Clone(tolerations)
	update = For(schema.GroupKind{Kind: "Pod"}).Update
	relabelled := pod.DeepCopy()
	relabelled.Labels = map[string]string{"a": "b"}
	check(t, update(relabelled, pod))
	relabelled.Spec.Tolerations[0].Key = "a"
	if errs := update(relabelled, pod); len(errs) == 0 {
		t.Error("another list of tolerations beyond the bound is accepted")
	}
}

// TestStoredBeforeTheRule: the same of values that Kubernetes refuses and this server did not
// always refuse.
func TestStoredBeforeTheRule(t *testing.T) {
	t.Parallel()
	cron := func(selectors string) *batchv1.CronJob {
		c := defaulted[batchv1.CronJob](t, `{metadata: {name: c, resourceVersion: "1"}, spec: {schedule: "@daily",
			jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}`)
		c.Spec.JobTemplate.Spec.Selector = selector(selectors)
		return c
	}
	update := For(schema.GroupKind{Group: batchv1.GroupName, Kind: "CronJob"}).Update
	c := cron("a=b")
	c.Spec.Suspend = ptr(true)
	check(t, update(c, cron("a=b")))
	check(t, update(c, cron("a=c")), "spec.jobTemplate.spec.selector: Invalid value")

	job := defaulted[batchv1.Job](t, `{metadata: {name: j, resourceVersion: "1"}, spec: {managedBy: me,
		template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`)
	update = For(schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}).Update
	suspended := job.DeepCopy()
	suspended.Spec.Suspend = ptr(true)
	check(t, update(suspended, job))

	policy := func(completions int32) *batchv1.Job {
		j := job.DeepCopy()
		j.Spec.ManagedBy, j.Spec.CompletionMode = nil, ptr(batchv1.IndexedCompletion)
		j.Spec.Completions, j.Spec.Parallelism = ptr(completions), ptr(completions)
		j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: ptr("3,1")}, {SucceededIndexes: ptr("4")}}}
		return j
	}
	suspended = policy(5)
	suspended.Spec.Suspend = ptr(true)
	check(t, update(suspended, policy(5)))
	check(t, update(policy(4), policy(5)), "spec.successPolicy.rules[1].succeededIndexes: Invalid value")

	deployment := func(keys ...string) *appsv1.Deployment {
		d := defaulted[appsv1.Deployment](t, appSpec)
		d.ResourceVersion = "1"
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: "zone", LabelSelector: selector("x=y"), MatchLabelKeys: keys, MismatchLabelKeys: []string{"a", "b"}},
		}}}
		return d
	}
	update = For(schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}).Update
	d := deployment("a")
	d.Spec.Replicas = ptr[int32](3)
	check(t, update(d, deployment("a")))
	check(t, update(deployment("b"), deployment("a")), "spec.template.spec.affinity.podAffinity."+requiredDuring+"[0].matchLabelKeys[0]: Invalid value")
}

// TestStoredBeforeSuchRules: rules that Kubernetes has for long, and this server has late.
func TestStoredBeforeSuchRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gk  schema.GroupKind
		old runtime.Object
	}{
		{
			schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"},
			defaulted[appsv1.Deployment](t, `{metadata: {name: d, resourceVersion: "1"}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}, annotations: {controller.kubernetes.io/pod-deletion-cost: "+1"}},
				spec: {hostAliases: [{ip: 010.0.0.1}], initContainers: [{name: i, image: i, resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]}], containers: [{name: c, image: i, env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: k}}}], resources: {limits: {cpu: 1, hugepages-2Mi: 3Mi}}}]}}}}`),
		},
		{
			schema.GroupKind{Kind: "LimitRange"},
			defaulted[corev1.LimitRange](t, `{metadata: {name: l, resourceVersion: "1"}, spec: {limits: [{type: Container, min: {cpu: 1}, max: {cpu: 2}, maxLimitRequestRatio: {cpu: 3}, default: {a.b/gpu: 2}, defaultRequest: {a.b/gpu: 1}}]}}`),
		},
		{
			schema.GroupKind{Group: "storage.k8s.io", Kind: "CSIDriver"},
			defaulted[storagev1.CSIDriver](t, `{metadata: {name: d, resourceVersion: "1"}, spec: {nodeAllocatableUpdatePeriodSeconds: 5, serviceAccountTokenInSecrets: true}}`),
		},
	} {
		rules := For(c.gk)
		now := c.old.DeepCopyObject()
		now.(metav1.Object).SetLabels(map[string]string{"more": "labels"})
		check(t, rules.Update(now, c.old))
		if errs := rules.Create(now); len(errs) == 0 {
			t.Errorf("%s is accepted as a new one", c.gk.Kind)
		}
	}
}

// TestRatchetLooksUp: the path of an error is read once, not once for each error of the old object.
//
//nolint:paralleltest // allocations of others would be counted
func TestRatchetLooksUp(t *testing.T) {
	path := field.NewPath("spec").Child("list")
	var errs, before field.ErrorList
	for i := range 300 {
		before = append(before, younger(field.Invalid(path.Index(i), fmt.Sprint(i), "x"))...)
		errs = append(errs, younger(field.Invalid(path.Index(299-i), fmt.Sprint(i), "x"))...)
	}
	before = append(before, beyondBound(field.TooLong(path, "", 1), []string{"a"}, 1)...)
	errs = append(errs, beyondBound(field.TooLong(path, "", 1), []string{"a"}, 1)...)
	errs = append(errs, field.Required(path, "of old"))
	added := younger(field.Invalid(path.Index(0), 1, "x"), field.Invalid(path.Child("more").Index(0), "1", "x"))
	added = append(added, beyondBound(field.TooLong(path, "", 1), []string{"b"}, 1)...)
	check(t, ratchet(slices.Concat(errs, added), before), "spec.list: Required value: of old", `spec.list[0]: Invalid value: 1: x`, `spec.list.more[0]: Invalid value: "1": x`, "spec.list: Too long")
	if n := testing.AllocsPerRun(1, func() { ratchet(slices.Clone(errs), before) }); n > 20*300 {
		t.Errorf("%v allocations for 300 errors", n)
	}
}
