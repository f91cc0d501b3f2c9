// What the kinds that make pods by a template have in common.

package kinds

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/hawser-project/hawser/auth/apiclient"
)

func defaultPodTemplateSpec(t *corev1.PodTemplateSpec) { defaultPodSpec(&t.Spec) }

const revisionHistoryLimit = 10

const (
	labelsDoNotMatch = "`selector` does not match template `labels`"
	overReplicas     = "cannot be greater than status.replicas"
	overReady        = "cannot be greater than readyReplicas"
	notNil           = "this should be defaulted and never be nil"
)

// A templateRule checks a pod template.
type templateRule func(t *corev1.PodTemplateSpec, p *field.Path) field.ErrorList

// metaOnly checks a template but for its spec.
func metaOnly(t *corev1.PodTemplateSpec, p *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabels(t.Labels, p.Child("labels"))
	errs = append(errs, apimachineryvalidation.ValidateAnnotations(t.Annotations, p.Child("annotations"))...)
	return append(errs, podAnnotations(t.Annotations, &t.Spec, p.Child("annotations"))...)
}

// selectorAndTemplate checks the pods that a controller of the given kind makes
// and how it finds them again.
func selectorAndTemplate(selector *metav1.LabelSelector, t *corev1.PodTemplateSpec, kind string, rule templateRule, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := p.Child("selector")
	switch {
	case selector == nil:
		errs = append(errs, field.Required(at, ""))
	case len(selector.MatchLabels)+len(selector.MatchExpressions) == 0:
		errs = append(errs, field.Invalid(at, selector, "empty selector is invalid for "+kind))
	default:
		bad := labelSelector(selector, at)
		errs = append(errs, bad...)
		if s, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			if len(bad) == 0 {
				errs = append(errs, field.Invalid(at, selector, "invalid label selector: "+err.Error()))
			}
		} else if !s.Matches(k8slabels.Set(t.Labels)) {
			errs = append(errs, field.Invalid(p.Child("template", "metadata", "labels"), t.Labels, labelsDoNotMatch))
		}
	}
	return append(errs, foreverTemplate(t, kind, rule, p.Child("template"))...)
}

// foreverTemplate checks the template of pods that are to run for good.
func foreverTemplate(t *corev1.PodTemplateSpec, kind string, rule templateRule, p *field.Path) field.ErrorList {
	errs := rule(t, p)
	if r := t.Spec.RestartPolicy; r != corev1.RestartPolicyAlways && r != "" {
		errs = append(errs, field.NotSupported(p.Child("spec", "restartPolicy"), r, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(p.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in "+kind+" is not Supported"))
	}
	return errs
}

// replicaCounts checks the counters of a status against each other.
func replicaCounts(replicas, labeled, ready, available int32, observed int64, p *field.Path) field.ErrorList {
	errs := nonNegative(replicas, p.Child("replicas"))
	errs = append(errs, nonNegative(labeled, p.Child("fullyLabeledReplicas"))...)
	errs = append(errs, nonNegative(ready, p.Child("readyReplicas"))...)
	errs = append(errs, nonNegative(available, p.Child("availableReplicas"))...)
	errs = append(errs, nonNegative(observed, p.Child("observedGeneration"))...)
	errs = append(errs, atMost(labeled, replicas, p.Child("fullyLabeledReplicas"), overReplicas)...)
	errs = append(errs, atMost(ready, replicas, p.Child("readyReplicas"), overReplicas)...)
	errs = append(errs, atMost(available, replicas, p.Child("availableReplicas"), overReplicas)...)
	return append(errs, atMost(available, ready, p.Child("availableReplicas"), overReady)...)
}

func collisions(n, old *int32, p *field.Path) field.ErrorList {
	errs := optionalNonNegative(n, p)
	if old != nil && (n == nil || *n < *old) {
		errs = append(errs, field.Invalid(p, deref(n), "cannot be decremented"))
	}
	return errs
}

// validatePodTemplateSpec checks the template of pods at p.
func validatePodTemplateSpec(t *corev1.PodTemplateSpec, p *field.Path) field.ErrorList {
	errs := validLabels(t.Labels, p.Child("labels"))
	errs = append(errs, apimachineryvalidation.ValidateAnnotations(t.Annotations, p.Child("annotations"))...)
	errs = append(errs, podAnnotations(t.Annotations, &t.Spec, p.Child("annotations"))...)
	errs = append(errs, validatePodSpec(&t.Spec, p.Child("spec"))...)
	errs = append(errs, younger(apiclient.CheckAppArmorFields(t.Annotations, &t.Spec, p.Child("spec"))...)...)
	errs = append(errs, labelKeysOnce(&t.Spec, nil, p.Child("spec"))...)
	if len(t.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(p.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template"))
	}
	return errs
}

// templateColumns are the wide columns of everything that owns a pod template.
func templateColumns() columns {
	return columns{
		wide(text("Containers", "Names of each container in the template.")),
		wide(text("Images", "Images referenced by each container in the template.")),
	}
}

// templateCells are the cells of templateColumns: names and images.
func templateCells(containers []corev1.Container) (string, string) {
	var names, images []string
	for _, c := range containers {
		names = append(names, c.Name)
		images = append(images, c.Image)
	}
	return strings.Join(names, ","), strings.Join(images, ",")
}
