// The kind ReplicaSet.

package kinds

import (
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func replicaSets() Kind {
	return of[appsv1.ReplicaSet, appsv1.ReplicaSetList](appsv1.SchemeGroupVersion, "ReplicaSet", "replicasets", "replicaset", Kind{
		short: []string{"rs"}, category: "all", status: true, generation: true, fields: selecting(replicaSetFields),
		rules:    Rules{create(validateReplicaSet), update(validateReplicaSetUpdate), update(validateReplicaSetStatusUpdate)},
		warnings: withName(ofTemplate(field.NewPath("spec", "template"), func(o *appsv1.ReplicaSet) *corev1.PodTemplateSpec { return &o.Spec.Template })),
		defaults: defaulting(defaultReplicaSet),
		table:    replicaSetTable,
		scale:    replicaSetScale,
	})
}

func replicaSetFields(rs *appsv1.ReplicaSet) fields.Set {
	return fields.Set{"status.replicas": strconv.Itoa(int(rs.Status.Replicas))}
}

func defaultReplicaSet(o *appsv1.ReplicaSet) {
	defaultPodTemplateSpec(&o.Spec.Template)
	setPtr(&o.Spec.Replicas, 1)
}

// validateReplicaSet checks a replica set.
func validateReplicaSet(o *appsv1.ReplicaSet) field.ErrorList {
	p := field.NewPath("spec")
	errs := optionalNonNegative(o.Spec.Replicas, p.Child("replicas"))
	errs = append(errs, nonNegative(o.Spec.MinReadySeconds, p.Child("minReadySeconds"))...)
	return append(errs, selectorAndTemplate(o.Spec.Selector, &o.Spec.Template, "ReplicaSet", validatePodTemplateSpec, p)...)
}

// validateReplicaSetUpdate checks a change of a replica set.
func validateReplicaSetUpdate(o, old *appsv1.ReplicaSet) field.ErrorList {
	return append(validateReplicaSet(o), immutable(o.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
}

// validateReplicaSetStatusUpdate checks a replica set's status.
func validateReplicaSetStatusUpdate(o, _ *appsv1.ReplicaSet) field.ErrorList {
	p, s := field.NewPath("status"), o.Status
	errs := replicaCounts(s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration, p)
	return append(errs, optionalNonNegative(s.TerminatingReplicas, p.Child("terminatingReplicas"))...)
}

func replicaSetTable(gr schema.GroupResource) rest.TableConvertor {
	spec, status := appsv1.ReplicaSetSpec{}.SwaggerDoc(), appsv1.ReplicaSetStatus{}.SwaggerDoc()
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		integer("Desired", spec["replicas"]),
		integer("Current", status["replicas"]),
		integer("Ready", status["readyReplicas"]),
		ageColumn(),
	}, templateColumns(), columns{selectorColumn(spec["selector"])}), func(o *appsv1.ReplicaSet, now time.Time) []any {
		names, images := templateCells(o.Spec.Template.Spec.Containers)
		return []any{
			o.Name, int64(derefOr(o.Spec.Replicas, 1)), int64(o.Status.Replicas), int64(o.Status.ReadyReplicas),
			age(o.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(o.Spec.Selector),
		}
	})
}

func replicaSetScale(obj runtime.Object) scaleParts {
	r := obj.(*appsv1.ReplicaSet)
	return scaleParts{&r.Spec.Replicas, r.Status.Replicas, r.Spec.Selector}
}
