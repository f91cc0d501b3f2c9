// The kind ReplicationController.

package kinds

import (
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func replicationControllers() Kind {
	return of[corev1.ReplicationController, corev1.ReplicationControllerList](corev1.SchemeGroupVersion, "ReplicationController", "replicationcontrollers", "replicationcontroller", Kind{
		short: []string{"rc"}, category: "all", status: true, generation: true, orphans: true,
		fields:   selecting(replicationControllerFields),
		rules:    Rules{create(validateReplicationController), anew(validateReplicationController), update(validateReplicationControllerStatusUpdate)},
		warnings: withName(ofTemplate(field.NewPath("spec", "template"), func(o *corev1.ReplicationController) *corev1.PodTemplateSpec { return o.Spec.Template })),
		defaults: defaulting(defaultReplicationController),
		table:    replicationControllerTable,
		scale:    replicationControllerScale,
	})
}

func replicationControllerFields(rc *corev1.ReplicationController) fields.Set {
	return fields.Set{"status.replicas": strconv.Itoa(int(rc.Status.Replicas))}
}

func defaultReplicationController(o *corev1.ReplicationController) {
	setPtr(&o.Spec.Replicas, 1)
	t := o.Spec.Template
	if t == nil {
		return
	}
	defaultPodTemplateSpec(t)
	if len(o.Spec.Selector) == 0 {
		o.Spec.Selector = maps.Clone(t.Labels)
	}
	if len(o.Labels) == 0 {
		o.Labels = maps.Clone(t.Labels)
	}
}

// validateReplicationController checks a replication controller.
func validateReplicationController(o *corev1.ReplicationController) field.ErrorList {
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
	return append(errs, foreverTemplate(o.Spec.Template, "ReplicationController", validatePodTemplateSpec, p.Child("template"))...)
}

// validateReplicationControllerStatusUpdate checks a replication controller's
// status.
func validateReplicationControllerStatusUpdate(o, _ *corev1.ReplicationController) field.ErrorList {
	s := o.Status
	return replicaCounts(s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration, field.NewPath("status"))
}

func replicationControllerTable(gr schema.GroupResource) rest.TableConvertor {
	spec, status := corev1.ReplicationControllerSpec{}.SwaggerDoc(), corev1.ReplicationControllerStatus{}.SwaggerDoc()
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		integer("Desired", spec["replicas"]),
		integer("Current", status["replicas"]),
		integer("Ready", status["readyReplicas"]),
		ageColumn(),
	}, templateColumns(), columns{selectorColumn(spec["selector"])}), func(o *corev1.ReplicationController, now time.Time) []any {
		var names, images string
		if o.Spec.Template != nil {
			names, images = templateCells(o.Spec.Template.Spec.Containers)
		}
		return []any{
			o.Name, int64(derefOr(o.Spec.Replicas, 0)), int64(o.Status.Replicas), int64(o.Status.ReadyReplicas),
			age(o.CreationTimestamp, now), names, images, labelsCell(o.Spec.Selector),
		}
	})
}

func replicationControllerScale(obj runtime.Object) scaleParts {
	r := obj.(*corev1.ReplicationController)
	return scaleParts{&r.Spec.Replicas, r.Status.Replicas, &metav1.LabelSelector{MatchLabels: r.Spec.Selector}}
}
