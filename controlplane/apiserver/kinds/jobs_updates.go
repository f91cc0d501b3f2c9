// Rules for updates of jobs and of their status.

package kinds

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateJobUpdate checks a change of a job. What its pods are and how many of
// them must succeed is decided when it is made. While it is suspended and has no
// pods, its template may still be told where to run and with which resources.
func validateJobUpdate(o, old *batchv1.Job) field.ErrorList {
	p := field.NewPath("spec")
	errs := jobSpec(&o.Spec, p)
	errs = append(errs, completionsUpdate(&o.Spec, &old.Spec, p.Child("completions"))...)
	errs = append(errs, immutable(o.Spec.Selector, old.Spec.Selector, p.Child("selector"))...)
	errs = append(errs, jobTemplateUpdate(o, old, p.Child("template"))...)
	errs = append(errs, immutable(o.Spec.CompletionMode, old.Spec.CompletionMode, p.Child("completionMode"))...)
	errs = append(errs, immutable(o.Spec.PodFailurePolicy, old.Spec.PodFailurePolicy, p.Child("podFailurePolicy"))...)
	errs = append(errs, immutable(o.Spec.BackoffLimitPerIndex, old.Spec.BackoffLimitPerIndex, p.Child("backoffLimitPerIndex"))...)
	errs = append(errs, immutable(o.Spec.ManagedBy, old.Spec.ManagedBy, p.Child("managedBy"))...)
	return append(errs, immutable(o.Spec.SuccessPolicy, old.Spec.SuccessPolicy, p.Child("successPolicy"))...)
}

// completionsUpdate lets an indexed job grow and shrink together with its
// parallelism.
func completionsUpdate(s, old *batchv1.JobSpec, p *field.Path) field.ErrorList {
	if deref(s.CompletionMode) != batchv1.IndexedCompletion || equal(s.Completions, old.Completions) {
		return immutable(s.Completions, old.Completions, p)
	}
	if deref(s.Completions) != deref(s.Parallelism) || s.Completions == nil {
		return field.ErrorList{field.Invalid(p, s.Completions, "can only be modified in tandem with spec.parallelism")}
	}
	return nil
}

func jobTemplateUpdate(o, old *batchv1.Job, p *field.Path) field.ErrorList {
	t := old.Spec.Template.DeepCopy()
	if rests(old) {
		now := &o.Spec.Template
		t.Spec.NodeSelector = now.Spec.NodeSelector
		t.Spec.Tolerations = now.Spec.Tolerations
		t.Spec.SchedulingGates = now.Spec.SchedulingGates
		t.Spec.Affinity = now.Spec.Affinity
		t.Annotations = now.Annotations
		t.Labels = now.Labels
		takeResources(t.Spec.Containers, now.Spec.Containers)
		takeResources(t.Spec.InitContainers, now.Spec.InitContainers)
	}
	return immutable(o.Spec.Template, *t, p)
}

// rests tells whether a job is suspended and, as its status says, has no pods any more.
func rests(o *batchv1.Job) bool {
	return deref(o.Spec.Suspend) && o.Status.Active == 0 && (o.Status.StartTime == nil || jobHas(o, batchv1.JobSuspended))
}

// takeResources gives containers the resources of those of the same name in now.
func takeResources(containers, now []corev1.Container) {
	if len(containers) != len(now) {
		return
	}
	for i := range now {
		if containers[i].Name == now[i].Name {
			containers[i].Resources = now[i].Resources
		}
	}
}
