// How a job selects its pods.

package kinds

import (
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Labels of the pods of a job, beside those with a prefix.
const (
	legacyControllerUIDLabel = "controller-uid"
	legacyJobNameLabel       = "job-name"
)

type label struct{ key, value string }

// jobLabels are what the pods of a job without a manual selector are known by.
func jobLabels(o *batchv1.Job) []label {
	uid := string(o.UID)
	return []label{
		{legacyControllerUIDLabel, uid},
		{legacyJobNameLabel, o.Name},
		{batchv1.ControllerUidLabel, uid},
		{batchv1.JobNameLabel, o.Name},
	}
}

// selectJob gives a job that did not choose a selector by hand one that only
// its own pods can match, by the job's uid, and labels the template to match.
// What the user wrote under these keys stays, and generatedSelector refuses it.
// A strategy calls it in its prepare step for a create, when the uid is known.
func selectJob(o *batchv1.Job) {
	if deref(o.Spec.ManualSelector) {
		return
	}
	labels := &o.Spec.Template.Labels
	if *labels == nil {
		*labels = make(map[string]string, 4)
	}
	for _, l := range jobLabels(o) {
		if _, is := (*labels)[l.key]; !is {
			(*labels)[l.key] = l.value
		}
	}
	if o.Spec.Selector == nil {
		o.Spec.Selector = &metav1.LabelSelector{}
	}
	if o.Spec.Selector.MatchLabels == nil {
		o.Spec.Selector.MatchLabels = make(map[string]string, 1)
	}
	if _, is := o.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !is {
		o.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(o.UID)
	}
}

// generatedSelector refuses labels and a selector under which a new job without a manual
// selector would have pods of others, or others its pods.
func generatedSelector(o *batchv1.Job, p *field.Path) field.ErrorList {
	if deref(o.Spec.ManualSelector) || o.Spec.Selector == nil {
		return nil
	}
	errs := required(string(o.UID), field.NewPath("metadata", "uid"))
	own, labels := make(k8slabels.Set, 4), o.Spec.Template.Labels
	for _, l := range jobLabels(o) {
		own[l.key] = l.value
		at := p.Child("template", "metadata", "labels").Key(l.key)
		if value, is := labels[l.key]; !is {
			errs = append(errs, field.Required(at, "must be '"+l.value+"'"))
		} else if value != l.value {
			errs = append(errs, field.Invalid(at, labels, "must be '"+l.value+"'"))
		}
	}
	if s, err := metav1.LabelSelectorAsSelector(o.Spec.Selector); err == nil && !s.Matches(own) {
		errs = append(errs, field.Invalid(p.Child("selector"), o.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}
