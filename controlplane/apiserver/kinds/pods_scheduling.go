// Rules for what decides where a pod runs.

package kinds

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateTolerations checks the tolerations at p.
func validateTolerations(list []corev1.Toleration, p *field.Path) field.ErrorList {
	if n := len(list); n > maxTolerations {
		return beyondBound(field.TooMany(p, n, maxTolerations), list, n)
	}
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, toleration(&list[i], p.Index(i))...)
	}
	return errs
}

func toleration(t *corev1.Toleration, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Key != "" {
		errs = append(errs, labelName(t.Key, p.Child("key"))...)
	}
	operator := p.Child("operator")
	if t.Key == "" && t.Operator != corev1.TolerationOpExists {
		errs = append(errs, field.Invalid(operator, t.Operator, "operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		errs = append(errs, field.Invalid(p.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
	}
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		errs = append(errs, messages(operator, t.Value, validation.IsValidLabelValue(t.Value))...)
	case corev1.TolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(operator, t, "value must be empty when `operator` is 'Exists'"))
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		// No more than what they are matched by takes for a number.
		if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil || len(content.IsDecimalInteger(t.Value)) > 0 {
			errs = append(errs, field.Invalid(p.Child("value"), t.Value, "must be a valid integer when `operator` is 'Lt' or 'Gt'"))
		}
	default:
		errs = append(errs, field.NotSupported(operator, t.Operator, []corev1.TolerationOperator{
			corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpGt, corev1.TolerationOpLt,
		}))
	}
	if t.Effect != "" {
		errs = append(errs, taintEffect(t.Effect, p.Child("effect"))...)
	}
	return errs
}

func taintEffect(e corev1.TaintEffect, p *field.Path) field.ErrorList {
	return oneOf(e, p, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
}

const (
	requiredDuring  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferredDuring = "preferredDuringSchedulingIgnoredDuringExecution"
	badWeight       = "must be in the range 1-100"
)

func affinity(a *corev1.Affinity, p *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if n := a.NodeAffinity; n.Size() > maxSelector {
		errs = append(errs, beyondBound(field.TooLong(p.Child("nodeAffinity"), "", maxSelector), n, n.Size())...)
	} else if n != nil {
		node := p.Child("nodeAffinity")
		if n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			errs = append(errs, nodeSelector(n.RequiredDuringSchedulingIgnoredDuringExecution, node.Child(requiredDuring))...)
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			t, at := &n.PreferredDuringSchedulingIgnoredDuringExecution[i], node.Child(preferredDuring).Index(i)
			errs = append(errs, weight(t.Weight, at.Child("weight"))...)
			errs = append(errs, nodeSelectorTerm(&t.Preference, false, at.Child("preference"))...)
		}
	}
	if a.PodAffinity != nil {
		errs = append(errs, podAffinityTerms(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, p.Child("podAffinity"))...)
	}
	if a.PodAntiAffinity != nil {
		errs = append(errs, podAffinityTerms(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, p.Child("podAntiAffinity"))...)
	}
	return errs
}

func weight(w int32, p *field.Path) field.ErrorList {
	if w < 1 || w > 100 {
		return field.ErrorList{field.Invalid(p, w, badWeight)}
	}
	return nil
}

func nodeSelector(s *corev1.NodeSelector, p *field.Path) field.ErrorList {
	if len(s.NodeSelectorTerms) == 0 {
		return field.ErrorList{field.Required(p.Child("nodeSelectorTerms"), "must have at least one node selector term")}
	}
	var errs field.ErrorList
	for i := range s.NodeSelectorTerms {
		errs = append(errs, nodeSelectorTerm(&s.NodeSelectorTerms[i], true, p.Child("nodeSelectorTerms").Index(i))...)
	}
	return errs
}

// nodeSelectorTerm checks one term. The values of labels are checked only in
// terms that a pod requires, as Kubernetes does.
func nodeSelectorTerm(t *corev1.NodeSelectorTerm, values bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range t.MatchExpressions {
		errs = append(errs, nodeExpression(&t.MatchExpressions[i], values, p.Child("matchExpressions").Index(i))...)
	}
	for i := range t.MatchFields {
		errs = append(errs, nodeField(&t.MatchFields[i], p.Child("matchFields").Index(i))...)
	}
	return errs
}

func nodeExpression(r *corev1.NodeSelectorRequirement, values bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(p.Child("values"), "must be specified when `operator` is 'In' or 'NotIn'"))
		}
		if values {
			for i, v := range r.Values {
				errs = append(errs, messages(p.Child("values").Index(i), v, validation.IsValidLabelValue(v))...)
			}
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			errs = append(errs, field.Forbidden(p.Child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(p.Child("values"), "must be specified single value when `operator` is 'Lt' or 'Gt'"))
		}
	default:
		errs = append(errs, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	return append(errs, labelName(r.Key, p.Child("key"))...)
}

// nodeField checks a requirement on a field of the node; there is only the name.
func nodeField(r *corev1.NodeSelectorRequirement, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(p.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
		}
	default:
		errs = append(errs, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	if r.Key != metav1.ObjectNameField {
		return append(errs, field.Invalid(p.Child("key"), r.Key, "not a valid field selector key"))
	}
	for i, v := range r.Values {
		errs = append(errs, dnsSubdomain(v, p.Child("values").Index(i))...)
	}
	return errs
}

func podAffinityTerms(must []corev1.PodAffinityTerm, should []corev1.WeightedPodAffinityTerm, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range must {
		errs = append(errs, podAffinityTerm(&must[i], p.Child(requiredDuring).Index(i))...)
	}
	for i := range should {
		at := p.Child(preferredDuring).Index(i)
		errs = append(errs, weight(should[i].Weight, at.Child("weight"))...)
		errs = append(errs, podAffinityTerm(&should[i].PodAffinityTerm, at.Child("podAffinityTerm"))...)
	}
	return errs
}

func podAffinityTerm(t *corev1.PodAffinityTerm, p *field.Path) field.ErrorList {
	errs := labelSelector(t.LabelSelector, p.Child("labelSelector"))
	errs = append(errs, labelSelector(t.NamespaceSelector, p.Child("namespaceSelector"))...)
	for _, ns := range t.Namespaces {
		errs = append(errs, dnsLabel(ns, p.Child("namespace"))...)
	}
	errs = append(errs, labelKeys(t.MatchLabelKeys, t.LabelSelector, p.Child("matchLabelKeys"))...)
	errs = append(errs, labelKeys(t.MismatchLabelKeys, t.LabelSelector, p.Child("mismatchLabelKeys"))...)
	return append(errs, topologyKey(t.TopologyKey, p.Child("topologyKey"))...)
}

func topologyKey(key string, p *field.Path) field.ErrorList {
	if key == "" {
		return field.ErrorList{field.Required(p, "can not be empty")}
	}
	return labelName(key, p)
}

// labelKeys are keys whose values are taken from the pod itself.
func labelKeys(keys []string, selector *metav1.LabelSelector, p *field.Path) field.ErrorList {
	if len(keys) == 0 {
		return nil
	}
	if selector == nil {
		return field.ErrorList{field.Forbidden(p, "must not be specified when labelSelector is not set")}
	}
	var errs field.ErrorList
	for i, k := range keys {
		errs = append(errs, labelName(k, p.Index(i))...)
	}
	return errs
}

func topologySpread(list []corev1.TopologySpreadConstraint, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range list {
		c, at := &list[i], p.Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than zero"))
		}
		errs = append(errs, topologyKey(c.TopologyKey, at.Child("topologyKey"))...)
		if c.WhenUnsatisfiable != corev1.DoNotSchedule && c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			errs = append(errs, field.NotSupported(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable,
				[]corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}))
		}
		key := fmt.Sprintf("{%s, %s}", c.TopologyKey, c.WhenUnsatisfiable)
		if seen[key] {
			errs = append(errs, field.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"), key))
		}
		seen[key] = true
		if m := c.MinDomains; m != nil {
			if *m <= 0 {
				errs = append(errs, field.Invalid(at.Child("minDomains"), *m, "must be greater than zero"))
			}
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				errs = append(errs, field.Invalid(at.Child("minDomains"), *m,
					fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule, c.WhenUnsatisfiable)))
			}
		}
		errs = append(errs, optionalOneOf(c.NodeAffinityPolicy, at.Child("nodeAffinityPolicy"), corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)...)
		errs = append(errs, optionalOneOf(c.NodeTaintsPolicy, at.Child("nodeTaintsPolicy"), corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)...)
		errs = append(errs, labelKeys(c.MatchLabelKeys, c.LabelSelector, at.Child("matchLabelKeys"))...)
		errs = append(errs, labelSelector(c.LabelSelector, at.Child("labelSelector"))...)
	}
	return errs
}
