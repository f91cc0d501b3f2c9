// Rules for labels by which a pod chooses other pods that are, or are not, like it.

package kinds

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// labelKeysOnce refuses label keys that a term of affinity or of spreading names twice: as those
// to match and to mismatch, or as those to match and in its selector. labels are those of the pod.
// Kubernetes adds their values to the selector when the pod is made, and looks at the result: a
// selector of a template, which has no labels yet, may have the key.
func labelKeysOnce(s *corev1.PodSpec, labels map[string]string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	term := func(t *corev1.PodAffinityTerm, p *field.Path) {
		errs = append(errs, keysOfTerm(t.MatchLabelKeys, t.MismatchLabelKeys, t.LabelSelector, labels, p)...)
	}
	terms := func(must []corev1.PodAffinityTerm, should []corev1.WeightedPodAffinityTerm, p *field.Path) {
		for i := range must {
			term(&must[i], p.Child(requiredDuring).Index(i))
		}
		for i := range should {
			term(&should[i].PodAffinityTerm, p.Child(preferredDuring).Index(i).Child("podAffinityTerm"))
		}
	}
	if a := s.Affinity; a != nil {
		if t := a.PodAffinity; t != nil {
			terms(t.RequiredDuringSchedulingIgnoredDuringExecution, t.PreferredDuringSchedulingIgnoredDuringExecution, p.Child("affinity", "podAffinity"))
		}
		if t := a.PodAntiAffinity; t != nil {
			terms(t.RequiredDuringSchedulingIgnoredDuringExecution, t.PreferredDuringSchedulingIgnoredDuringExecution, p.Child("affinity", "podAntiAffinity"))
		}
	}
	for i := range s.TopologySpreadConstraints {
		c := &s.TopologySpreadConstraints[i]
		errs = append(errs, keysOfTerm(c.MatchLabelKeys, nil, c.LabelSelector, labels, p.Child("topologySpreadConstraints").Index(i))...)
	}
	return errs
}

// keysOfTerm has the paths of Kubernetes, which leave the field out for a key that is selected, too.
func keysOfTerm(match, mismatch []string, s *metav1.LabelSelector, labels map[string]string, p *field.Path) field.ErrorList {
	if len(match) == 0 || s == nil {
		return nil
	}
	var errs field.ErrorList
	selected := make(map[string]bool, len(s.MatchLabels)+len(s.MatchExpressions))
	for key := range s.MatchLabels {
		selected[key] = true
	}
	index, mismatched := make(map[string]int, len(match)), make(map[string]bool, len(mismatch))
	for i, key := range match {
		index[key] = i
	}
	for _, key := range mismatch {
		mismatched[key] = true
	}
	expression := func(key string) {
		if i, is := index[key]; is && selected[key] {
			errs = append(errs, field.Invalid(p.Index(i), key, "exists in both matchLabelKeys and labelSelector"))
		}
		selected[key] = true
	}
	for i := range s.MatchExpressions {
		expression(s.MatchExpressions[i].Key)
	}
	for _, key := range slices.Concat(match, mismatch) {
		if _, is := labels[key]; is {
			expression(key)
		}
	}
	for i, key := range match {
		if mismatched[key] {
			errs = append(errs, field.Invalid(p.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	return younger(errs...)
}
