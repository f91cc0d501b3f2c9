// Rules for stateful sets and controller revisions.

package kinds

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateStatefulSet checks a stateful set.
func ValidateStatefulSet(o *appsv1.StatefulSet) field.ErrorList {
	p, s := field.NewPath("spec"), &o.Spec
	errs := oneOf(s.PodManagementPolicy, p.Child("podManagementPolicy"), appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)
	errs = append(errs, statefulSetStrategy(&s.UpdateStrategy, p.Child("updateStrategy"))...)
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
	if s.ServiceName != "" {
		errs = append(errs, dnsSubdomain(s.ServiceName, p.Child("serviceName"))...)
	}
	for i := range s.VolumeClaimTemplates {
		c, at := &s.VolumeClaimTemplates[i], p.Child("volumeClaimTemplates").Index(i)
		errs = append(errs, dnsSubdomain(c.Name, at.Child("metadata", "name"))...)
	}
	// The spec of the template is left to the pods, as in Kubernetes: its
	// containers mount claims that are volumes only once a pod is made.
	return append(errs, selectorAndTemplate(s.Selector, &s.Template, "StatefulSet", metaOnly, p)...)
}

func statefulSetStrategy(s *appsv1.StatefulSetUpdateStrategy, p *field.Path) field.ErrorList {
	at := p.Child("rollingUpdate")
	switch s.Type {
	case appsv1.OnDeleteStatefulSetStrategyType, appsv1.RecreateStatefulSetStrategyType:
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

// ValidateStatefulSetUpdate checks a change of a stateful set: what its pods
// and claims are found by stays.
func ValidateStatefulSetUpdate(o, old *appsv1.StatefulSet) field.ErrorList {
	errs := ValidateStatefulSet(o)
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

// ValidateStatefulSetStatusUpdate checks a stateful set's status.
func ValidateStatefulSetStatusUpdate(o, old *appsv1.StatefulSet) field.ErrorList {
	p, s := field.NewPath("status"), &o.Status
	errs := replicaCounts(s.Replicas, 0, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration, p)
	errs = append(errs, nonNegative(s.CurrentReplicas, p.Child("currentReplicas"))...)
	errs = append(errs, nonNegative(s.UpdatedReplicas, p.Child("updatedReplicas"))...)
	errs = append(errs, atMost(s.CurrentReplicas, s.Replicas, p.Child("currentReplicas"), overReplicas)...)
	errs = append(errs, atMost(s.UpdatedReplicas, s.Replicas, p.Child("updatedReplicas"), overReplicas)...)
	return append(errs, collisions(s.CollisionCount, old.Status.CollisionCount, p.Child("collisionCount"))...)
}

// ValidateControllerRevision checks a controller revision.
func ValidateControllerRevision(o *appsv1.ControllerRevision) field.ErrorList {
	var errs field.ErrorList
	if o.Data.Object == nil && len(o.Data.Raw) == 0 {
		errs = append(errs, field.Required(field.NewPath("data"), "data is mandatory"))
	}
	return append(errs, nonNegative(o.Revision, field.NewPath("revision"))...)
}

// ValidateControllerRevisionUpdate checks a change of a revision, whose data
// is what it is about.
func ValidateControllerRevisionUpdate(o, old *appsv1.ControllerRevision) field.ErrorList {
	return append(ValidateControllerRevision(o), immutable(o.Data, old.Data, field.NewPath("data"))...)
}
