// Rules for the status of jobs.
//
// Others than this server's controller may write it (spec.managedBy), and clients wait for
// what it says: a job that has ended has ended for good, and everything about it is told by
// then. A rule is applied if the write changes something that it is about. So a job that is
// at odds with one, as after a change of its spec, can be put right step by step.

package kinds

import (
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateJobStatusUpdate checks a job's status.
func validateJobStatusUpdate(o, old *batchv1.Job) field.ErrorList {
	c := &jobStatusChange{o, old, field.NewPath("status")}
	errs := c.numbers()
	errs = append(errs, c.terminalConditions()...)
	errs = append(errs, c.interimConditions()...)
	errs = append(errs, c.startTime()...)
	errs = append(errs, c.completionTime()...)
	errs = append(errs, c.ended()...)
	return append(errs, c.indexes()...)
}

// A jobStatusChange is a job, and the job whose status it is to replace.
type jobStatusChange struct {
	job, old *batchv1.Job
	path     *field.Path
}

// changed tells whether one of the conditions becomes true or is no longer true.
func (c *jobStatusChange) changed(types ...batchv1.JobConditionType) bool {
	return slices.ContainsFunc(types, func(t batchv1.JobConditionType) bool { return jobHas(c.job, t) != jobHas(c.old, t) })
}

// condition is an error about all conditions together.
func (c *jobStatusChange) condition(format string, args ...any) *field.Error {
	return field.Invalid(c.path.Child("conditions"), field.OmitValueType{}, fmt.Sprintf(format, args...))
}

// numbers checks the numbers of pods.
func (c *jobStatusChange) numbers() field.ErrorList {
	s, old, p := &c.job.Status, &c.old.Status, c.path
	errs := nonNegative(s.Active, p.Child("active"))
	errs = append(errs, nonNegative(s.Succeeded, p.Child("succeeded"))...)
	errs = append(errs, nonNegative(s.Failed, p.Child("failed"))...)
	errs = append(errs, optionalNonNegative(s.Ready, p.Child("ready"))...)
	errs = append(errs, optionalNonNegative(s.Terminating, p.Child("terminating"))...)
	errs = append(errs, uncountedPods(s.UncountedTerminatedPods, p.Child("uncountedTerminatedPods"))...)
	if s.Failed < old.Failed {
		errs = append(errs, field.Invalid(p.Child("failed"), s.Failed, "cannot decrease the failed counter"))
	}
	// A job whose parallelism is its completions may have been made smaller. It may have another
	// parallelism by the time that its indexes are counted.
	spec := &c.job.Spec
	shrinks := deref(spec.CompletionMode) == batchv1.IndexedCompletion &&
		(equal(spec.Completions, spec.Parallelism) || s.CompletedIndexes != old.CompletedIndexes)
	if s.Succeeded < old.Succeeded && !shrinks {
		errs = append(errs, field.Invalid(p.Child("succeeded"), s.Succeeded, "cannot decrease the succeeded counter"))
	}
	if s.Ready != nil && *s.Ready > s.Active && (s.Active != old.Active || !equal(s.Ready, old.Ready)) {
		errs = append(errs, field.Invalid(p.Child("ready"), *s.Ready, "cannot set more ready pods than active"))
	}
	return errs
}

// terminalConditions checks the conditions that a job has once it has ended.
func (c *jobStatusChange) terminalConditions() field.ErrorList {
	const complete, failed, target, met = batchv1.JobComplete, batchv1.JobFailed, batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet
	var errs field.ErrorList
	for _, t := range []batchv1.JobConditionType{failed, complete, target} {
		if jobHas(c.old, t) && !jobHas(c.job, t) {
			errs = append(errs, c.condition("cannot disable the terminal %s=True condition", t))
		}
	}
	isComplete, hasFailed := jobHas(c.job, complete), jobHas(c.job, failed)
	if isComplete && hasFailed && c.changed(complete, failed) {
		errs = append(errs, c.condition("cannot set Complete=True and Failed=true conditions"))
	}
	if isComplete && jobHas(c.job, target) && c.changed(complete, target) {
		errs = append(errs, c.condition("cannot set Complete=True and FailureTarget=true conditions"))
	}
	if hasFailed && !jobHas(c.job, target) && (c.changed(failed) || !equal(c.job.Status.FailedIndexes, c.old.Status.FailedIndexes)) {
		errs = append(errs, c.condition("cannot set Failed=True condition without the FailureTarget=true condition"))
	}
	if isComplete && !jobHas(c.job, met) && c.changed(complete, met) {
		errs = append(errs, c.condition("cannot set Complete=True condition without the SuccessCriteriaMet=true condition"))
	}
	return errs
}

// interimConditions checks the condition that a job has while its last pods are stopped.
func (c *jobStatusChange) interimConditions() field.ErrorList {
	const met, complete, failed, target = batchv1.JobSuccessCriteriaMet, batchv1.JobComplete, batchv1.JobFailed, batchv1.JobFailureTarget
	var errs field.ErrorList
	if jobHas(c.job, met) && jobHas(c.job, failed) && c.changed(met, failed) {
		errs = append(errs, c.condition("cannot set SuccessCriteriaMet=True and Failed=true conditions"))
	}
	if jobHas(c.job, met) && jobHas(c.job, target) && c.changed(met, target) {
		errs = append(errs, c.condition("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"))
	}
	if c.job.Spec.SuccessPolicy != nil && !jobHas(c.job, met) && jobHas(c.job, complete) && c.changed(met, complete) {
		errs = append(errs, c.condition("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True"))
	}
	if jobHas(c.old, met) && !jobHas(c.job, met) {
		errs = append(errs, c.condition("cannot disable the SuccessCriteriaMet=True condition"))
	}
	if jobHas(c.old, complete) && !jobHas(c.old, met) && jobHas(c.job, met) {
		errs = append(errs, c.condition("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions"))
	}
	return errs
}

// startTime checks when the job began: only rest makes it begin anew.
func (c *jobStatusChange) startTime() field.ErrorList {
	is, was, spec := c.job.Status.StartTime, c.old.Status.StartTime, &c.job.Spec
	changed, p := !is.Equal(was), c.path.Child("startTime")
	var errs field.ErrorList
	nothing := deref(spec.Suspend) && spec.Completions != nil && *spec.Completions == 0
	if is == nil && finished(c.job) && !nothing && (changed || finished(c.old) != finished(c.job)) {
		errs = append(errs, field.Required(p, "startTime is required for finished job"))
	}
	resumes := jobHas(c.old, batchv1.JobSuspended) && slices.ContainsFunc(c.job.Status.Conditions, func(d batchv1.JobCondition) bool {
		return d.Type == batchv1.JobSuspended && d.Status == corev1.ConditionFalse
	})
	if was != nil && changed && !resumes && !deref(spec.Suspend) {
		errs = append(errs, field.Invalid(p, is, "field is immutable for unsuspended job once set"))
	}
	return errs
}

// completionTime checks when the job was complete.
func (c *jobStatusChange) completionTime() field.ErrorList {
	is, was, start := c.job.Status.CompletionTime, c.old.Status.CompletionTime, c.job.Status.StartTime
	changed, p := !is.Equal(was), c.path.Child("completionTime")
	var errs field.ErrorList
	complete := jobHas(c.job, batchv1.JobComplete)
	if changed || c.changed(batchv1.JobComplete) {
		switch {
		case is != nil && !complete:
			errs = append(errs, field.Invalid(p, is, "cannot set completionTime when there is no Complete=True condition"))
		case is == nil && complete:
			errs = append(errs, field.Required(p, "completionTime is required for Complete jobs"))
		}
	}
	if start != nil && is != nil && is.Before(start) && (changed || !equal(start, c.old.Status.StartTime)) {
		errs = append(errs, field.Invalid(p, is, "must be equal to or after `startTime`"))
	}
	if is != nil && was != nil && changed {
		errs = append(errs, field.Invalid(p, is, "field is immutable"))
	}
	return errs
}

// ended checks that a job that has ended has no pods that run, and none to be counted.
func (c *jobStatusChange) ended() field.ErrorList {
	if !finished(c.job) {
		return nil
	}
	s, old, now := &c.job.Status, &c.old.Status, !finished(c.old)
	var errs field.ErrorList
	if s.Active > 0 && (now || s.Active != old.Active) {
		errs = append(errs, field.Invalid(c.path.Child("active"), s.Active, "active>0 is invalid for finished job"))
	}
	if deref(s.Terminating) > 0 && (now || !equal(s.Terminating, old.Terminating)) {
		errs = append(errs, field.Invalid(c.path.Child("terminating"), s.Terminating, "terminating>0 is invalid for finished job"))
	}
	u := s.UncountedTerminatedPods
	if u != nil && len(u.Failed)+len(u.Succeeded) > 0 && (now || !equal(u, old.UncountedTerminatedPods)) {
		errs = append(errs, field.Invalid(c.path.Child("uncountedTerminatedPods"), u, "must be empty for finished job"))
	}
	return errs
}

// indexes checks which indexes have succeeded, and which have failed for good.
func (c *jobStatusChange) indexes() field.ErrorList {
	s, old, spec := &c.job.Status, &c.old.Status, &c.job.Spec
	completed, failed := s.CompletedIndexes != old.CompletedIndexes, !equal(s.FailedIndexes, old.FailedIndexes)
	limit := int(deref(spec.Completions))
	var errs field.ErrorList
	if p := c.path.Child("completedIndexes"); completed && s.CompletedIndexes != "" {
		if _, err := countIndexes(s.CompletedIndexes, limit); err != nil && spec.Completions != nil {
			errs = append(errs, field.Invalid(p, s.CompletedIndexes, "error parsing completedIndexes: "+err.Error()))
		}
		if deref(spec.CompletionMode) != batchv1.IndexedCompletion {
			errs = append(errs, field.Invalid(p, s.CompletedIndexes, "cannot set non-empty completedIndexes when non-indexed completion mode"))
		}
	}
	p := c.path.Child("failedIndexes")
	if failed && s.FailedIndexes != nil {
		if spec.BackoffLimitPerIndex == nil {
			errs = append(errs, field.Invalid(p, *s.FailedIndexes, "cannot set non-null failedIndexes when backoffLimitPerIndex is null"))
		} else if _, err := countIndexes(*s.FailedIndexes, limit); err != nil && spec.Completions != nil {
			errs = append(errs, field.Invalid(p, *s.FailedIndexes, "error parsing failedIndexes: "+err.Error()))
		}
	}
	if (completed || failed) && spec.Completions != nil {
		if at, both := commonIndex(s.CompletedIndexes, deref(s.FailedIndexes), limit); both {
			errs = append(errs, field.Invalid(p, *s.FailedIndexes, fmt.Sprintf("failedIndexes and completedIndexes overlap at index: %d", at)))
		}
	}
	return errs
}

// commonIndex returns an index that is in both lists. Intervals that cannot be read are passed over.
func commonIndex(a, b string, limit int) (int, bool) {
	left, right := strings.Split(a, ","), strings.Split(b, ",")
	for i, j := 0, 0; i < len(left) && j < len(right); {
		first, last, err := indexInterval(left[i], limit)
		if err != nil {
			i++
			continue
		}
		begin, end, err := indexInterval(right[j], limit)
		switch {
		case err != nil:
			j++
		case first <= end && begin <= last:
			return max(first, begin), true
		case first <= begin:
			i++
		default:
			j++
		}
	}
	return 0, false
}

// uncountedPods checks that each pod is to be counted once: as succeeded or as failed.
func uncountedPods(u *batchv1.UncountedTerminatedPods, p *field.Path) field.ErrorList {
	if u == nil {
		return nil
	}
	var errs field.ErrorList
	seen := make(map[types.UID]bool, len(u.Succeeded)+len(u.Failed))
	check := func(uids []types.UID, p *field.Path) {
		for i, uid := range uids {
			switch {
			case uid == "":
				errs = append(errs, field.Invalid(p.Index(i), uid, "must not be empty"))
			case seen[uid]:
				errs = append(errs, field.Duplicate(p.Index(i), uid))
			}
			seen[uid] = true
		}
	}
	check(u.Succeeded, p.Child("succeeded"))
	check(u.Failed, p.Child("failed"))
	return errs
}

// finished tells whether a job has ended.
func finished(o *batchv1.Job) bool {
	return jobHas(o, batchv1.JobComplete) || jobHas(o, batchv1.JobFailed)
}

func jobHas(o *batchv1.Job, t batchv1.JobConditionType) bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}
