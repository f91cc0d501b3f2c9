// The kind DaemonSet.

package kinds

import (
	"context"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func daemonSets() Kind {
	return of[appsv1.DaemonSet, appsv1.DaemonSetList](appsv1.SchemeGroupVersion, "DaemonSet", "daemonsets", "daemonset", Kind{
		short: []string{"ds"}, category: "all", status: true, generation: true, onCreate: creating(newDaemonSet), onUpdate: updating(updateDaemonSet),
		rules:    Rules{create(validateDaemonSet), update(validateDaemonSetUpdate), update(validateDaemonSetStatusUpdate)},
		warnings: ofTemplate(field.NewPath("spec", "template"), func(o *appsv1.DaemonSet) *corev1.PodTemplateSpec { return &o.Spec.Template }),
		defaults: defaulting(defaultDaemonSet),
		table:    daemonSetTable,
	})
}

// templateGeneration is an old counter of the API that nothing reads any more
// but every DaemonSet carries.
const templateGeneration = appsv1.DeprecatedTemplateGeneration

func newDaemonSet(_ context.Context, ds *appsv1.DaemonSet) {
	if ds.Annotations[templateGeneration] == "" {
		metav1.SetMetaDataAnnotation(&ds.ObjectMeta, templateGeneration, "1")
	}
}

func updateDaemonSet(_ context.Context, ds, old *appsv1.DaemonSet) {
	n, err := strconv.ParseInt(old.Annotations[templateGeneration], 10, 64)
	if err != nil {
		return
	}
	if !equality.Semantic.DeepEqual(ds.Spec.Template, old.Spec.Template) {
		n++
	}
	metav1.SetMetaDataAnnotation(&ds.ObjectMeta, templateGeneration, strconv.FormatInt(n, 10))
}

func defaultDaemonSet(o *appsv1.DaemonSet) {
	s := &o.Spec
	defaultPodTemplateSpec(&s.Template)
	set(&s.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if s.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		setPtr(&s.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		setPtr(&s.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		setPtr(&s.UpdateStrategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	setPtr(&s.RevisionHistoryLimit, revisionHistoryLimit)
}

// validateDaemonSet checks a daemon set.
func validateDaemonSet(o *appsv1.DaemonSet) field.ErrorList {
	p, s := field.NewPath("spec"), &o.Spec
	errs := selectorAndTemplate(s.Selector, &s.Template, "DaemonSet", validatePodTemplateSpec, p)
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

// validateDaemonSetUpdate checks a change of a daemon set.
func validateDaemonSetUpdate(o, old *appsv1.DaemonSet) field.ErrorList {
	return append(validateDaemonSet(o), immutable(o.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

// validateDaemonSetStatusUpdate checks a daemon set's status.
func validateDaemonSetStatusUpdate(o, old *appsv1.DaemonSet) field.ErrorList {
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

func daemonSetTable(gr schema.GroupResource) rest.TableConvertor {
	status := appsv1.DaemonSetStatus{}.SwaggerDoc()
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		integer("Desired", status["desiredNumberScheduled"]),
		integer("Current", status["currentNumberScheduled"]),
		integer("Ready", status["numberReady"]),
		integer("Up-to-date", status["updatedNumberScheduled"]),
		integer("Available", status["numberAvailable"]),
		text("Node Selector", corev1.PodSpec{}.SwaggerDoc()["nodeSelector"]),
		ageColumn(),
	}, templateColumns(), columns{selectorColumn(appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"])}), func(o *appsv1.DaemonSet, now time.Time) []any {
		names, images := templateCells(o.Spec.Template.Spec.Containers)
		s := o.Status
		return []any{
			o.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady),
			int64(s.UpdatedNumberScheduled), int64(s.NumberAvailable), labelsCell(o.Spec.Template.Spec.NodeSelector),
			age(o.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(o.Spec.Selector),
		}
	})
}
