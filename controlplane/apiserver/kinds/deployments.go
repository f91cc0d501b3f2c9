// The kind Deployment.

package kinds

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func deployments() Kind {
	return of[appsv1.Deployment, appsv1.DeploymentList](appsv1.SchemeGroupVersion, "Deployment", "deployments", "deployment", Kind{
		short: []string{"deploy"}, category: "all", status: true, generation: true,
		onUpdate: updating(updateDeployment), onStatus: updating(deploymentStatus), statusResets: []string{"metadata.labels"},
		rules:    Rules{create(validateDeployment), update(validateDeploymentUpdate), update(validateDeploymentStatusUpdate)},
		warnings: withName(ofTemplate(field.NewPath("spec", "template"), func(o *appsv1.Deployment) *corev1.PodTemplateSpec { return &o.Spec.Template })),
		defaults: defaulting(defaultDeployment),
		table:    deploymentTable,
		scale:    deploymentScale,
	})
}

// updateDeployment counts a change of the annotations as one of the spec, as
// rollbacks by annotation once were.
func updateDeployment(_ context.Context, d, old *appsv1.Deployment) {
	if !equality.Semantic.DeepEqual(d.Annotations, old.Annotations) {
		d.Generation = old.Generation + 1
	}
}

// deploymentStatus keeps the labels: the deployment controller once overwrote
// them from a stale copy.
func deploymentStatus(_ context.Context, d, old *appsv1.Deployment) { d.Labels = old.Labels }

const (
	progressDeadlineSeconds   = 600
	rollingUpdateDefaultShare = "25%"
)

func defaultDeployment(o *appsv1.Deployment) {
	s := &o.Spec
	defaultPodTemplateSpec(&s.Template)
	setPtr(&s.Replicas, 1)
	set(&s.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if s.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		setPtr(&s.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		setPtr(&s.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString(rollingUpdateDefaultShare))
		setPtr(&s.Strategy.RollingUpdate.MaxSurge, intstr.FromString(rollingUpdateDefaultShare))
	}
	setPtr(&s.RevisionHistoryLimit, revisionHistoryLimit)
	setPtr(&s.ProgressDeadlineSeconds, progressDeadlineSeconds)
}

// validateDeployment checks a deployment.
func validateDeployment(o *appsv1.Deployment) field.ErrorList {
	p, s := field.NewPath("spec"), &o.Spec
	errs := optionalNonNegative(s.Replicas, p.Child("replicas"))
	errs = append(errs, selectorAndTemplate(s.Selector, &s.Template, "Deployment", validatePodTemplateSpec, p)...)
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

// validateDeploymentUpdate checks a change of a deployment.
func validateDeploymentUpdate(o, old *appsv1.Deployment) field.ErrorList {
	return append(validateDeployment(o), immutable(o.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

// validateDeploymentStatusUpdate checks a deployment's status. The count of
// collisions makes names of replica sets, so it only grows.
func validateDeploymentStatusUpdate(o, old *appsv1.Deployment) field.ErrorList {
	p, s := field.NewPath("status"), &o.Status
	errs := replicaCounts(s.Replicas, 0, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration, p)
	errs = append(errs, nonNegative(s.UpdatedReplicas, p.Child("updatedReplicas"))...)
	errs = append(errs, nonNegative(s.UnavailableReplicas, p.Child("unavailableReplicas"))...)
	errs = append(errs, optionalNonNegative(s.TerminatingReplicas, p.Child("terminatingReplicas"))...)
	errs = append(errs, atMost(s.UpdatedReplicas, s.Replicas, p.Child("updatedReplicas"), overReplicas)...)
	return append(errs, collisions(s.CollisionCount, old.Status.CollisionCount, p.Child("collisionCount"))...)
}

func deploymentTable(gr schema.GroupResource) rest.TableConvertor {
	status := appsv1.DeploymentStatus{}.SwaggerDoc()
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		text("Ready", "Number of the pod with ready state"),
		integer("Up-to-date", status["updatedReplicas"]),
		integer("Available", status["availableReplicas"]),
		ageColumn(),
	}, templateColumns(), columns{selectorColumn(appsv1.DeploymentSpec{}.SwaggerDoc()["selector"])}), func(o *appsv1.Deployment, now time.Time) []any {
		names, images := templateCells(o.Spec.Template.Spec.Containers)
		return []any{
			o.Name, fmt.Sprintf("%d/%d", o.Status.ReadyReplicas, derefOr(o.Spec.Replicas, 1)),
			int64(o.Status.UpdatedReplicas), int64(o.Status.AvailableReplicas), age(o.CreationTimestamp, now),
			names, images, metav1.FormatLabelSelector(o.Spec.Selector),
		}
	})
}

func deploymentScale(obj runtime.Object) scaleParts {
	d := obj.(*appsv1.Deployment)
	return scaleParts{&d.Spec.Replicas, d.Status.Replicas, d.Spec.Selector}
}
