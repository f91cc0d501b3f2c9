// The kind StatefulSet.

package kinds

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func statefulSets() Kind {
	return of[appsv1.StatefulSet, appsv1.StatefulSetList](appsv1.SchemeGroupVersion, "StatefulSet", "statefulsets", "statefulset", Kind{
		short: []string{"sts"}, category: "all", status: true, generation: true,
		rules:    Rules{create(validateStatefulSet), update(validateStatefulSetUpdate), update(validateStatefulSetStatusUpdate)},
		warnings: warningOf(statefulSetWarnings),
		defaults: defaulting(defaultStatefulSet),
		table:    statefulSetTable,
		scale:    statefulSetScale,
	})
}

func defaultStatefulSet(o *appsv1.StatefulSet) {
	s := &o.Spec
	defaultPodTemplateSpec(&s.Template)
	set(&s.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	set(&s.UpdateStrategy.Type, appsv1.RollingUpdateStatefulSetStrategyType)
	if s.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		setPtr(&s.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
		setPtr(&s.UpdateStrategy.RollingUpdate.Partition, 0)
		setPtr(&s.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	}
	setPtr(&s.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	set(&s.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	set(&s.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	setPtr(&s.Replicas, 1)
	setPtr(&s.RevisionHistoryLimit, revisionHistoryLimit)
	for i := range s.VolumeClaimTemplates {
		c := &s.VolumeClaimTemplates[i]
		defaultPersistentVolumeClaim(c)
		set(&c.APIVersion, "v1")
		set(&c.Kind, "PersistentVolumeClaim")
	}
}

// statefulSetWarnings warns of the template, and of revisions that are kept for ever.
func statefulSetWarnings(w *warnings, o, old *appsv1.StatefulSet) {
	if old == nil || o.Generation != old.Generation {
		podWarnings(w, &o.Spec.Template.ObjectMeta, &o.Spec.Template.Spec, field.NewPath("spec", "template"))
	}
	if n := o.Spec.RevisionHistoryLimit; n != nil && *n < 0 {
		w.add("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
}

// validateStatefulSet checks a new stateful set.
func validateStatefulSet(o *appsv1.StatefulSet) field.ErrorList {
	p, s := field.NewPath("spec"), &o.Spec
	errs := statefulSet(o, statefulTemplate(s), false)
	if s.ServiceName != "" {
		errs = append(errs, dnsLabel(s.ServiceName, p.Child("serviceName"))...)
	}
	for i := range s.VolumeClaimTemplates {
		errs = append(errs, claimSpec(&s.VolumeClaimTemplates[i].Spec, p.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
	}
	return errs
}

// statefulTemplate checks a template with what the pods of s get beside it: volumes of the claims,
// and names of their own.
func statefulTemplate(s *appsv1.StatefulSetSpec) templateRule {
	return func(t *corev1.PodTemplateSpec, p *field.Path) field.ErrorList {
		t = t.DeepCopy()
		t.Spec.Hostname, t.Spec.Subdomain = "", ""
		all := make([]corev1.Volume, 0, len(s.VolumeClaimTemplates)+len(t.Spec.Volumes))
		claimed := map[string]bool{}
		for i := range s.VolumeClaimTemplates {
			name := s.VolumeClaimTemplates[i].Name
			if !claimed[name] {
				source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
				all = append(all, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source}})
			}
			claimed[name] = true
		}
		for _, v := range t.Spec.Volumes {
			if !claimed[v.Name] {
				all = append(all, v)
			}
		}
		t.Spec.Volumes = all
		return validatePodTemplateSpec(t, p)
	}
}

// statefulSet checks what can be changed of a stateful set. recreate says that its strategy may be
// Recreate, which is behind a gate that is off.
func statefulSet(o *appsv1.StatefulSet, rule templateRule, recreate bool) field.ErrorList {
	p, s := field.NewPath("spec"), &o.Spec
	errs := oneOf(s.PodManagementPolicy, p.Child("podManagementPolicy"), appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)
	if !recreate || s.UpdateStrategy.Type != appsv1.RecreateStatefulSetStrategyType || s.UpdateStrategy.RollingUpdate != nil {
		errs = append(errs, statefulSetStrategy(&s.UpdateStrategy, p.Child("updateStrategy"))...)
	}
	if r := s.PersistentVolumeClaimRetentionPolicy; r != nil {
		at := p.Child("persistentVolumeClaimRetentionPolicy")
		allowed := []appsv1.PersistentVolumeClaimRetentionPolicyType{
			appsv1.DeletePersistentVolumeClaimRetentionPolicyType, appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
		}
		errs = append(errs, oneOf(r.WhenDeleted, at.Child("whenDeleted"), allowed...)...)
		errs = append(errs, oneOf(r.WhenScaled, at.Child("whenScaled"), allowed...)...)
	}
	errs = append(errs, optionalNonNegative(s.Replicas, p.Child("replicas"))...)
	errs = append(errs, nonNegative(s.MinReadySeconds, p.Child("minReadySeconds"))...)
	errs = append(errs, optionalNonNegative(s.RevisionHistoryLimit, p.Child("revisionHistoryLimit"))...)
	if s.Ordinals != nil {
		errs = append(errs, nonNegative(s.Ordinals.Start, p.Child("ordinals", "start"))...)
	}
	return append(errs, selectorAndTemplate(s.Selector, &s.Template, "StatefulSet", rule, p)...)
}

func statefulSetStrategy(s *appsv1.StatefulSetUpdateStrategy, p *field.Path) field.ErrorList {
	at := p.Child("rollingUpdate")
	switch s.Type {
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Invalid(at, s.RollingUpdate, "only allowed for updateStrategy '"+string(appsv1.RollingUpdateStatefulSetStrategyType)+"'")}
		}
		return nil
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if s.RollingUpdate == nil {
			return nil
		}
		errs := optionalNonNegative(s.RollingUpdate.Partition, at.Child("partition"))
		if m := s.RollingUpdate.MaxUnavailable; m != nil {
			errs = append(errs, intOrPercent(*m, at.Child("maxUnavailable"))...)
			errs = append(errs, notMoreThan100Percent(*m, at.Child("maxUnavailable"))...)
			if isZero(*m) {
				errs = append(errs, field.Invalid(at.Child("maxUnavailable"), *m, "cannot be 0"))
			}
		}
		return errs
	default:
		return oneOf(s.Type, p.Child("type"), appsv1.RollingUpdateStatefulSetStrategyType, appsv1.OnDeleteStatefulSetStrategyType)
	}
}

// validateStatefulSetUpdate checks a change of a stateful set: what its pods
// and claims are found by stays. One that was stored before its template was
// looked at may have any, and one that was stored with the strategy Recreate may keep that.
func validateStatefulSetUpdate(o, old *appsv1.StatefulSet) field.ErrorList {
	rule, recreate := statefulTemplate(&o.Spec), old.Spec.UpdateStrategy.Type == appsv1.RecreateStatefulSetStrategyType
	if len(statefulSet(old, statefulTemplate(&old.Spec), recreate)) > 0 {
		rule = metaOnly
	}
	errs := statefulSet(o, rule, recreate)
	back := o.Spec.DeepCopy()
	back.Replicas = old.Spec.Replicas
	back.Ordinals = old.Spec.Ordinals
	back.Template = old.Spec.Template
	back.UpdateStrategy = old.Spec.UpdateStrategy
	back.MinReadySeconds = old.Spec.MinReadySeconds
	back.RevisionHistoryLimit = old.Spec.RevisionHistoryLimit
	back.PersistentVolumeClaimRetentionPolicy = old.Spec.PersistentVolumeClaimRetentionPolicy
	if !equal(*back, old.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"), "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "+
			"'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"))
	}
	return errs
}

// validateStatefulSetStatusUpdate checks a stateful set's status.
func validateStatefulSetStatusUpdate(o, old *appsv1.StatefulSet) field.ErrorList {
	p, s := field.NewPath("status"), &o.Status
	errs := replicaCounts(s.Replicas, 0, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration, p)
	errs = append(errs, nonNegative(s.CurrentReplicas, p.Child("currentReplicas"))...)
	errs = append(errs, nonNegative(s.UpdatedReplicas, p.Child("updatedReplicas"))...)
	errs = append(errs, atMost(s.CurrentReplicas, s.Replicas, p.Child("currentReplicas"), overReplicas)...)
	errs = append(errs, atMost(s.UpdatedReplicas, s.Replicas, p.Child("updatedReplicas"), overReplicas)...)
	return append(errs, collisions(s.CollisionCount, old.Status.CollisionCount, p.Child("collisionCount"))...)
}

func statefulSetTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		text("Ready", "Number of the pod with ready state"),
		ageColumn(),
	}, templateColumns()), func(o *appsv1.StatefulSet, now time.Time) []any {
		names, images := templateCells(o.Spec.Template.Spec.Containers)
		return []any{o.Name, fmt.Sprintf("%d/%d", o.Status.ReadyReplicas, derefOr(o.Spec.Replicas, 1)), age(o.CreationTimestamp, now), names, images}
	})
}

func statefulSetScale(obj runtime.Object) scaleParts {
	s := obj.(*appsv1.StatefulSet)
	return scaleParts{&s.Spec.Replicas, s.Status.Replicas, s.Spec.Selector}
}
