package kinds

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestResourceQuotas(t *testing.T) {
	t.Parallel()
	type quota = *corev1.ResourceQuota
	freshQuota := func() quota {
		return defaulted[corev1.ResourceQuota](t, `{metadata: {name: q}, spec: {hard: {cpu: "4", requests.memory: 1Gi, limits.cpu: "8", pods: "10", count/jobs.batch: "5",
			hugepages-2Mi: 4Mi, requests.example.com/gpu: "1", gold.storageclass.storage.k8s.io/requests.storage: 1Gi}, scopes: [NotTerminating]}}`)
	}
	mutate(t, freshQuota, validateResourceQuota, []mutation[quota]{
		{"negative", func(q quota) { q.Spec.Hard["cpu"] = quantity("-1") }, bad("spec.hard[cpu]: Invalid value")},
		{"half a pod", func(q quota) { q.Spec.Hard["pods"] = quantity("500m") }, bad(`spec.hard[pods]: Invalid value: "500m": must be an integer`)},
		{"unknown", func(q quota) { q.Spec.Hard["disk"] = quantity("1") }, bad(`spec.hard[disk]: Invalid value: "disk": must be a standard resource for quota`)},
		{"scope", func(q quota) { q.Spec.Scopes = []corev1.ResourceQuotaScope{"x"} }, bad(`spec.scopes: Invalid value: ["x"]: unsupported scope`)},
		{"scopes", func(q quota) { q.Spec.Scopes = []corev1.ResourceQuotaScope{"Terminating", "NotTerminating"} }, bad("spec.scopes: Invalid value")},
		{"selector", func(q quota) {
			q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: "PriorityClass", Operator: "In"}, {ScopeName: "x", Operator: "Exists", Values: []string{"a"}}, {ScopeName: "NotBestEffort", Operator: "x"},
			}}
		}, bad("spec.scopeSelector.matchExpressions[0].values: Required value", "spec.scopeSelector.matchExpressions[1].scopeName: Invalid value",
			"spec.scopeSelector.matchExpressions[1].values: Invalid value", "spec.scopeSelector.matchExpressions[2].operator: Invalid value")},
	})
	const selector = "spec.scopeSelector"
	selecting := func(q quota, hard corev1.ResourceList, scopes ...corev1.ScopedResourceSelectorRequirement) {
		q.Spec.Hard, q.Spec.Scopes, q.Spec.ScopeSelector = hard, nil, &corev1.ScopeSelector{MatchExpressions: scopes}
	}
	pods, storage := list("pods", "1"), list("requests.storage", "1")
	mutate(t, freshQuota, validateResourceQuota, []mutation[quota]{
		{"storage of pods", func(q quota) { q.Spec.Hard = storage }, bad(`spec.scopes: Invalid value: ["NotTerminating"]: unsupported scope applied to resource requests.storage`)},
		{"local storage of pods", func(q quota) { q.Spec.Hard = list("ephemeral-storage", "1") }, bad(`spec.scopes: Invalid value: ["NotTerminating"]: unsupported scope applied to resource ephemeral-storage`)},
		{"services of pods", func(q quota) { q.Spec.Hard = list("services", "1") }, bad(`spec.scopes: Invalid value: ["NotTerminating"]: unsupported scope applied to resource services`)},
		{"cpu of those that ask for none", func(q quota) {
			q.Spec.Hard, q.Spec.Scopes = list("pods", "1", "requests.cpu", "1"), []corev1.ResourceQuotaScope{"BestEffort"}
		}, bad(`spec.scopes: Invalid value: ["BestEffort"]: unsupported scope applied to resource requests.cpu`)},
		{"both kinds of effort", func(q quota) {
			selecting(q, pods, corev1.ScopedResourceSelectorRequirement{ScopeName: "BestEffort", Operator: "Exists"}, corev1.ScopedResourceSelectorRequirement{ScopeName: "NotBestEffort", Operator: "Exists"})
		}, bad(selector + ": Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes")},
		{"no effort", func(q quota) {
			selecting(q, pods, corev1.ScopedResourceSelectorRequirement{ScopeName: "BestEffort", Operator: "DoesNotExist"})
		}, bad(selector + `.matchExpressions[0].operator: Invalid value: "DoesNotExist": must be 'Exists' when the scope is BestEffort`)},
		{"storage of a class of pods", func(q quota) {
			selecting(q, storage, corev1.ScopedResourceSelectorRequirement{ScopeName: "PriorityClass", Operator: "NotIn", Values: []string{"a"}})
		}, bad(selector + ".matchExpressions[0]: Invalid value: \"PriorityClass\": unsupported scope applied to resource requests.storage")},
		{"storage of a class of claims", func(q quota) {
			selecting(q, storage, corev1.ScopedResourceSelectorRequirement{ScopeName: "VolumeAttributesClass", Operator: "In", Values: []string{"a"}})
		}, nil},
		{"pods of a class of claims", func(q quota) {
			selecting(q, pods, corev1.ScopedResourceSelectorRequirement{ScopeName: "VolumeAttributesClass", Operator: "Exists"})
		}, bad(selector + `.matchExpressions[0]: Invalid value: "VolumeAttributesClass": unsupported scope applied to resource pods`)},
	})
	mutateUpdate(t, freshQuota, validateResourceQuotaUpdate, []mutation[quota]{
		{"hard", func(q quota) { q.Spec.Hard = list("cpu", "5") }, nil},
		{"scopes change", func(q quota) { q.Spec.Scopes = nil }, bad("spec.scopes: Invalid value: null: field is immutable")},
	})
	mutate(t, freshQuota, validateResourceQuotaStatus, []mutation[quota]{
		{"used", func(q quota) { q.Status.Hard, q.Status.Used = list("cpu", "5"), list("cpu", "-1") }, bad("status.used[cpu]: Invalid value")},
	})
}
