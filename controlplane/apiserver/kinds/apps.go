// Rules for the controllers that keep pods running.

package kinds

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

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
	return append(errs, apimachineryvalidation.ValidateAnnotations(t.Annotations, p.Child("annotations"))...)
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

// ValidateReplicationController checks a replication controller.
func ValidateReplicationController(o *corev1.ReplicationController) field.ErrorList {
	p := field.NewPath("spec")
	errs := nonNegative(o.Spec.MinReadySeconds, p.Child("minReadySeconds"))
	errs = append(errs, optionalNonNegative(o.Spec.Replicas, p.Child("replicas"))...)
	if len(o.Spec.Selector) == 0 {
		errs = append(errs, field.Required(p.Child("selector"), ""))
	}
	if o.Spec.Template == nil {
		return append(errs, field.Required(p.Child("template"), ""))
	}
	if !k8slabels.SelectorFromSet(o.Spec.Selector).Matches(k8slabels.Set(o.Spec.Template.Labels)) {
		errs = append(errs, field.Invalid(p.Child("template", "metadata", "labels"), o.Spec.Template.Labels, labelsDoNotMatch))
	}
	return append(errs, foreverTemplate(o.Spec.Template, "ReplicationController", ValidatePodTemplateSpec, p.Child("template"))...)
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

// ValidateReplicationControllerStatusUpdate checks a replication controller's
// status.
func ValidateReplicationControllerStatusUpdate(o, _ *corev1.ReplicationController) field.ErrorList {
	s := o.Status
	return replicaCounts(s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration, field.NewPath("status"))
}

// ValidateReplicaSet checks a replica set.
func ValidateReplicaSet(o *appsv1.ReplicaSet) field.ErrorList {
	p := field.NewPath("spec")
	errs := optionalNonNegative(o.Spec.Replicas, p.Child("replicas"))
	errs = append(errs, nonNegative(o.Spec.MinReadySeconds, p.Child("minReadySeconds"))...)
	return append(errs, selectorAndTemplate(o.Spec.Selector, &o.Spec.Template, "ReplicaSet", ValidatePodTemplateSpec, p)...)
}

// ValidateReplicaSetUpdate checks a change of a replica set.
func ValidateReplicaSetUpdate(o, old *appsv1.ReplicaSet) field.ErrorList {
	return append(ValidateReplicaSet(o), immutable(o.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

// ValidateReplicaSetStatusUpdate checks a replica set's status.
func ValidateReplicaSetStatusUpdate(o, _ *appsv1.ReplicaSet) field.ErrorList {
	p, s := field.NewPath("status"), o.Status
	errs := replicaCounts(s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration, p)
	return append(errs, optionalNonNegative(s.TerminatingReplicas, p.Child("terminatingReplicas"))...)
}

// ValidateDeployment checks a deployment.
func ValidateDeployment(o *appsv1.Deployment) field.ErrorList {
	p, s := field.NewPath("spec"), &o.Spec
	errs := optionalNonNegative(s.Replicas, p.Child("replicas"))
	errs = append(errs, selectorAndTemplate(s.Selector, &s.Template, "Deployment", ValidatePodTemplateSpec, p)...)
	errs = append(errs, deploymentStrategy(&s.Strategy, p.Child("strategy"))...)
	errs = append(errs, nonNegative(s.MinReadySeconds, p.Child("minReadySeconds"))...)
	errs = append(errs, optionalNonNegative(s.RevisionHistoryLimit, p.Child("revisionHistoryLimit"))...)
	if d := s.ProgressDeadlineSeconds; d != nil {
		errs = append(errs, nonNegative(*d, p.Child("progressDeadlineSeconds"))...)
		if *d <= s.MinReadySeconds {
			errs = append(errs, field.Invalid(p.Child("progressDeadlineSeconds"), *d, "must be greater than minReadySeconds"))
		}
	}
	return errs
}

func deploymentStrategy(s *appsv1.DeploymentStrategy, p *field.Path) field.ErrorList {
	at := p.Child("rollingUpdate")
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Forbidden(at, "may not be specified when strategy `type` is '"+string(s.Type)+"'")}
		}
		return nil
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.RollingUpdate == nil {
			return field.ErrorList{field.Required(at, notNil)}
		}
		unavailable, surge := deref(s.RollingUpdate.MaxUnavailable), deref(s.RollingUpdate.MaxSurge)
		errs := intOrPercent(unavailable, at.Child("maxUnavailable"))
		errs = append(errs, intOrPercent(surge, at.Child("maxSurge"))...)
		if isZero(unavailable) && isZero(surge) {
			errs = append(errs, field.Invalid(at.Child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0"))
		}
		return append(errs, notMoreThan100Percent(unavailable, at.Child("maxUnavailable"))...)
	default:
		return oneOf(s.Type, p.Child("type"), appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType)
	}
}

// ValidateDeploymentUpdate checks a change of a deployment.
func ValidateDeploymentUpdate(o, old *appsv1.Deployment) field.ErrorList {
	return append(ValidateDeployment(o), immutable(o.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

// ValidateDeploymentStatusUpdate checks a deployment's status. The count of
// collisions makes names of replica sets, so it only grows.
func ValidateDeploymentStatusUpdate(o, old *appsv1.Deployment) field.ErrorList {
	p, s := field.NewPath("status"), &o.Status
	errs := replicaCounts(s.Replicas, 0, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration, p)
	errs = append(errs, nonNegative(s.UpdatedReplicas, p.Child("updatedReplicas"))...)
	errs = append(errs, nonNegative(s.UnavailableReplicas, p.Child("unavailableReplicas"))...)
	errs = append(errs, optionalNonNegative(s.TerminatingReplicas, p.Child("terminatingReplicas"))...)
	errs = append(errs, atMost(s.UpdatedReplicas, s.Replicas, p.Child("updatedReplicas"), overReplicas)...)
	return append(errs, collisions(s.CollisionCount, old.Status.CollisionCount, p.Child("collisionCount"))...)
}

func collisions(n, old *int32, p *field.Path) field.ErrorList {
	errs := optionalNonNegative(n, p)
	if old != nil && (n == nil || *n < *old) {
		errs = append(errs, field.Invalid(p, deref(n), "cannot be decremented"))
	}
	return errs
}

// ValidateDaemonSet checks a daemon set.
func ValidateDaemonSet(o *appsv1.DaemonSet) field.ErrorList {
	p, s := field.NewPath("spec"), &o.Spec
	errs := selectorAndTemplate(s.Selector, &s.Template, "DaemonSet", ValidatePodTemplateSpec, p)
	errs = append(errs, nonNegative(s.MinReadySeconds, p.Child("minReadySeconds"))...)
	errs = append(errs, optionalNonNegative(s.RevisionHistoryLimit, p.Child("revisionHistoryLimit"))...)
	at := p.Child("updateStrategy")
	switch s.UpdateStrategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		errs = append(errs, daemonSetRollout(s.UpdateStrategy.RollingUpdate, at.Child("rollingUpdate"))...)
	default:
		errs = append(errs, oneOf(s.UpdateStrategy.Type, at.Child("type"), appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType)...)
	}
	return errs
}

// daemonSetRollout wants one way or the other of replacing a pod: take it away
// first, or put the new one beside it.
func daemonSetRollout(r *appsv1.RollingUpdateDaemonSet, p *field.Path) field.ErrorList {
	if r == nil {
		return field.ErrorList{field.Required(p, "")}
	}
	var unavailable, surge intstr.IntOrString
	if r.MaxUnavailable != nil {
		unavailable = *r.MaxUnavailable
	}
	if r.MaxSurge != nil {
		surge = *r.MaxSurge
	}
	errs := intOrPercent(unavailable, p.Child("maxUnavailable"))
	errs = append(errs, notMoreThan100Percent(unavailable, p.Child("maxUnavailable"))...)
	errs = append(errs, intOrPercent(surge, p.Child("maxSurge"))...)
	errs = append(errs, notMoreThan100Percent(surge, p.Child("maxSurge"))...)
	switch {
	case !isZero(unavailable) && !isZero(surge):
		errs = append(errs, field.Invalid(p.Child("maxSurge"), surge, "may not be set when maxUnavailable is non-zero"))
	case isZero(unavailable) && isZero(surge):
		errs = append(errs, field.Required(p.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	}
	return errs
}

// ValidateDaemonSetUpdate checks a change of a daemon set.
func ValidateDaemonSetUpdate(o, old *appsv1.DaemonSet) field.ErrorList {
	return append(ValidateDaemonSet(o), immutable(o.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

// ValidateDaemonSetStatusUpdate checks a daemon set's status.
func ValidateDaemonSetStatusUpdate(o, old *appsv1.DaemonSet) field.ErrorList {
	p, s := field.NewPath("status"), &o.Status
	errs := nonNegative(s.CurrentNumberScheduled, p.Child("currentNumberScheduled"))
	errs = append(errs, nonNegative(s.NumberMisscheduled, p.Child("numberMisscheduled"))...)
	errs = append(errs, nonNegative(s.DesiredNumberScheduled, p.Child("desiredNumberScheduled"))...)
	errs = append(errs, nonNegative(s.NumberReady, p.Child("numberReady"))...)
	errs = append(errs, nonNegative(s.ObservedGeneration, p.Child("observedGeneration"))...)
	errs = append(errs, nonNegative(s.UpdatedNumberScheduled, p.Child("updatedNumberScheduled"))...)
	errs = append(errs, nonNegative(s.NumberAvailable, p.Child("numberAvailable"))...)
	errs = append(errs, nonNegative(s.NumberUnavailable, p.Child("numberUnavailable"))...)
	return append(errs, collisions(s.CollisionCount, old.Status.CollisionCount, p.Child("collisionCount"))...)
}
