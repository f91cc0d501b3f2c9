// Scopes: which objects a quota is about.

package quota

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

func podInScope(s corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	pod, err := as[corev1.Pod](obj)
	if err != nil {
		return false, err
	}
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return terminating(pod), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !terminating(pod), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(pod), nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(pod), nil
	case corev1.ResourceQuotaScopePriorityClass:
		return selects(s, pod.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossNamespace(pod.Spec.Affinity), nil
	}
	return false, nil
}

// claimInScope: while a claim changes its class it is in those of both.
func claimInScope(s corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	c, err := as[corev1.PersistentVolumeClaim](obj)
	if err != nil || s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false, err
	}
	var classes []string
	for _, class := range []*string{c.Spec.VolumeAttributesClassName, c.Status.CurrentVolumeAttributesClassName} {
		if class != nil {
			classes = append(classes, *class)
		}
	}
	if m := c.Status.ModifyVolumeStatus; m != nil {
		classes = append(classes, m.TargetVolumeAttributesClassName)
	}
	return selects(s, classes...)
}

// selects tells whether a selector matches one of values, of which those that are empty
// are none.
func selects(s corev1.ScopedResourceSelectorRequirement, values ...string) (bool, error) {
	values = slices.DeleteFunc(values, func(v string) bool { return v == "" })
	named := slices.ContainsFunc(values, func(v string) bool { return slices.Contains(s.Values, v) })
	switch s.Operator {
	case corev1.ScopeSelectorOpIn:
		return named, nil
	case corev1.ScopeSelectorOpNotIn:
		return !named, nil
	case corev1.ScopeSelectorOpExists:
		return len(values) > 0, nil
	case corev1.ScopeSelectorOpDoesNotExist:
		return len(values) == 0, nil
	}
	return false, fmt.Errorf("%q is not a valid scope selector operator", s.Operator)
}

// terminating tells whether a pod has a deadline.
func terminating(p *corev1.Pod) bool {
	return p.Spec.ActiveDeadlineSeconds != nil && *p.Spec.ActiveDeadlineSeconds >= 0
}

// bestEffort goes by the class that the pod was given, for that one stays.
func bestEffort(p *corev1.Pod) bool {
	class := p.Status.QOSClass
	if class == "" {
		class = kinds.QOSClass(p)
	}
	return class == corev1.PodQOSBestEffort
}

// crossNamespace tells whether an affinity looks at pods of other namespaces.
func crossNamespace(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	var required []corev1.PodAffinityTerm
	var preferred []corev1.WeightedPodAffinityTerm
	if p := a.PodAffinity; p != nil {
		required, preferred = p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if p := a.PodAntiAffinity; p != nil {
		required = slices.Concat(required, p.RequiredDuringSchedulingIgnoredDuringExecution)
		preferred = slices.Concat(preferred, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	elsewhere := func(t *corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil }
	return slices.ContainsFunc(required, func(t corev1.PodAffinityTerm) bool { return elsewhere(&t) }) ||
		slices.ContainsFunc(preferred, func(t corev1.WeightedPodAffinityTerm) bool { return elsewhere(&t.PodAffinityTerm) })
}
