// The kind Job.

package kinds

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func jobs() Kind {
	return of[batchv1.Job, batchv1.JobList](batchv1.SchemeGroupVersion, "Job", "jobs", "job", Kind{
		category: "all", status: true, generation: true, orphans: true, fields: selecting(jobFields), onCreate: creating(newJob),
		rules:    Rules{create(validateJob), update(validateJobUpdate), update(validateJobStatusUpdate)},
		warnings: withName(warningOf(jobWarnings)),
		defaults: defaulting(defaultJob),
		table:    jobTable,
	})
}

func jobFields(j *batchv1.Job) fields.Set {
	return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
}

// newJob gives a job the selector and labels that tie it to its own pods.
func newJob(_ context.Context, j *batchv1.Job) { selectJob(j) }

const jobBackoffLimit = 6

func defaultJob(o *batchv1.Job) {
	s := &o.Spec
	defaultJobSpec(s)
	// Without either number the job is one pod. With only completions it is
	// that many, one after the other; with only parallelism it is a work queue
	// that ends when one pod says so.
	if s.Completions == nil && s.Parallelism == nil {
		setPtr(&s.Completions, 1)
	}
	setPtr(&s.Parallelism, 1)
	if s.BackoffLimitPerIndex != nil {
		setPtr(&s.BackoffLimit, math.MaxInt32)
	}
	setPtr(&s.BackoffLimit, jobBackoffLimit)
	setPtr(&s.CompletionMode, batchv1.NonIndexedCompletion)
	setPtr(&s.Suspend, false)
	if s.PodFailurePolicy != nil {
		setPtr(&s.PodReplacementPolicy, batchv1.Failed)
	}
	setPtr(&s.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	setPtr(&s.ManualSelector, false)
	if len(o.Labels) == 0 {
		o.Labels = maps.Clone(s.Template.Labels)
	}
}

// defaultJobSpec sets what a job and the template of a job have in common.
func defaultJobSpec(s *batchv1.JobSpec) {
	defaultPodTemplateSpec(&s.Template)
	if s.PodFailurePolicy == nil {
		return
	}
	for i := range s.PodFailurePolicy.Rules {
		conditions := s.PodFailurePolicy.Rules[i].OnPodConditions
		for j := range conditions {
			set(&conditions[j].Status, corev1.ConditionTrue)
		}
	}
}

// Bounds of jobs.
const (
	maxIndexed           = 100_000 // parallelism beyond which the status of indexes would not fit an object
	maxOfMany            = 10_000  // parallelism, and indexes that may fail, of a job with more than maxIndexed of them
	maxFailureRules      = 20
	maxFailureExitCodes  = 255
	maxFailureConditions = 20
	maxJobControllerName = 63
)

// validateJob checks a job.
func validateJob(o *batchv1.Job) field.ErrorList {
	p := field.NewPath("spec")
	errs := append(generatedSelector(o, p), jobSpec(&o.Spec, p)...)
	if o.Spec.Selector == nil {
		errs = append(errs, field.Required(p.Child("selector"), ""))
	} else {
		errs = append(errs, labelSelector(o.Spec.Selector, p.Child("selector"))...)
		s, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
		if err == nil && !s.Matches(k8slabels.Set(o.Spec.Template.Labels)) {
			errs = append(errs, field.Invalid(p.Child("template", "metadata", "labels"), o.Spec.Template.Labels, labelsDoNotMatch))
		}
	}
	if deref(o.Spec.CompletionMode) == batchv1.IndexedCompletion {
		if c := deref(o.Spec.Completions); c > 0 {
			// The longest host name a pod of the job gets.
			name := fmt.Sprintf("%s-%d", o.Name, c-1)
			if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
				errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), o.Name, "will not able to create pod with invalid DNS label: "+name))
			}
		}
	}
	return errs
}

// jobSpec has the rules that also hold for the template of a job.
func jobSpec(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	errs := optionalNonNegative(s.Parallelism, p.Child("parallelism"))
	errs = append(errs, optionalNonNegative(s.Completions, p.Child("completions"))...)
	errs = append(errs, optionalNonNegative(s.ActiveDeadlineSeconds, p.Child("activeDeadlineSeconds"))...)
	errs = append(errs, optionalNonNegative(s.BackoffLimit, p.Child("backoffLimit"))...)
	errs = append(errs, optionalNonNegative(s.TTLSecondsAfterFinished, p.Child("ttlSecondsAfterFinished"))...)
	errs = append(errs, optionalNonNegative(s.BackoffLimitPerIndex, p.Child("backoffLimitPerIndex"))...)
	errs = append(errs, optionalNonNegative(s.MaxFailedIndexes, p.Child("maxFailedIndexes"))...)
	errs = append(errs, jobIndexes(s, p)...)
	replacement := []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}
	if s.PodFailurePolicy != nil { // which is about how pods have ended
		replacement = replacement[:1]
	}
	errs = append(errs, optionalOneOf(s.PodReplacementPolicy, p.Child("podReplacementPolicy"), replacement...)...)
	if m := s.ManagedBy; m != nil {
		at := p.Child("managedBy")
		errs = append(errs, younger(validation.IsDomainPrefixedPath(at, *m)...)...)
		if len(*m) > maxJobControllerName {
			errs = append(errs, field.TooLong(at, *m, maxJobControllerName))
		}
	}
	errs = append(errs, podFailurePolicy(s, p.Child("podFailurePolicy"))...)
	errs = append(errs, successPolicy(s, p.Child("successPolicy"))...)
	errs = append(errs, validatePodTemplateSpec(&s.Template, p.Child("template"))...)
	at := p.Child("template", "spec", "restartPolicy")
	switch r := s.Template.Spec.RestartPolicy; r {
	case corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
		if s.PodFailurePolicy != nil && r != corev1.RestartPolicyNever {
			errs = append(errs, field.Invalid(at, r, fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever)))
		}
	case "", corev1.RestartPolicyAlways:
		// The default of pods is what most people get wrong here.
		errs = append(errs, field.Required(at, `valid values: "OnFailure", "Never"`))
	default:
		errs = append(errs, field.NotSupported(at, r, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	}
	return errs
}

// jobIndexes checks what depends on whether the pods of a job are numbered.
func jobIndexes(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	errs := optionalOneOf(s.CompletionMode, p.Child("completionMode"), batchv1.NonIndexedCompletion, batchv1.IndexedCompletion)
	if deref(s.CompletionMode) != batchv1.IndexedCompletion {
		for _, f := range []struct {
			name  string
			value *int32
		}{{"backoffLimitPerIndex", s.BackoffLimitPerIndex}, {"maxFailedIndexes", s.MaxFailedIndexes}} {
			if f.value != nil {
				errs = append(errs, field.Invalid(p.Child(f.name), *f.value, "requires indexed completion mode"))
			}
		}
		return errs
	}
	if s.Completions == nil {
		errs = append(errs, field.Required(p.Child("completions"), fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion)))
	}
	if n := deref(s.Parallelism); n > maxIndexed {
		errs = append(errs, field.Invalid(p.Child("parallelism"), n,
			fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexed, batchv1.IndexedCompletion)))
	}
	if m := s.MaxFailedIndexes; m != nil {
		if s.Completions != nil && *m > *s.Completions {
			errs = append(errs, field.Invalid(p.Child("maxFailedIndexes"), *m, "must be less than or equal to completions"))
		}
		if *m > maxIndexed {
			errs = append(errs, field.Invalid(p.Child("maxFailedIndexes"), *m, fmt.Sprintf("must be less than or equal to %d", maxIndexed)))
		}
		if s.BackoffLimitPerIndex == nil {
			errs = append(errs, field.Required(p.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
		}
	}
	if deref(s.Completions) > maxIndexed && s.BackoffLimitPerIndex != nil {
		errs = append(errs, manyLimited(s, p)...)
	}
	return errs
}

// manyLimited checks a job with limits per index that has so many indexes that those
// that have failed would not fit its status if they could be any.
func manyLimited(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	why := fmt.Sprintf("when completions are above %d and used with backoff limit per index", maxIndexed)
	least := fmt.Sprintf("must be less than or equal to %d %s", maxOfMany, why)
	var errs field.ErrorList
	if n := deref(s.Parallelism); n > maxOfMany {
		errs = append(errs, field.Invalid(p.Child("parallelism"), n, least))
	}
	if m := s.MaxFailedIndexes; m == nil {
		errs = append(errs, field.Required(p.Child("maxFailedIndexes"), "must be specified "+why))
	} else if *m > maxOfMany {
		errs = append(errs, field.Invalid(p.Child("maxFailedIndexes"), *m, least))
	}
	return errs
}

func podFailurePolicy(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	if s.PodFailurePolicy == nil {
		return nil
	}
	var errs field.ErrorList
	rules := p.Child("rules")
	if n := len(s.PodFailurePolicy.Rules); n > maxFailureRules {
		errs = append(errs, field.TooMany(rules, n, maxFailureRules))
	}
	for i := range s.PodFailurePolicy.Rules {
		r, at := &s.PodFailurePolicy.Rules[i], rules.Index(i)
		errs = append(errs, oneOf(r.Action, at.Child("action"), batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex,
			batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore)...)
		if r.Action == batchv1.PodFailurePolicyActionFailIndex && s.BackoffLimitPerIndex == nil {
			errs = append(errs, field.Invalid(at.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set"))
		}
		switch {
		case r.OnExitCodes != nil && len(r.OnPodConditions) > 0:
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported"))
		case r.OnExitCodes == nil && len(r.OnPodConditions) == 0:
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required"))
		}
		if r.OnExitCodes != nil {
			errs = append(errs, failureExitCodes(r.OnExitCodes, &s.Template.Spec, at.Child("onExitCodes"))...)
		}
		if n := len(r.OnPodConditions); n > maxFailureConditions {
			errs = append(errs, field.TooMany(at.Child("onPodConditions"), n, maxFailureConditions))
		}
		for j, c := range r.OnPodConditions {
			errs = append(errs, qualifiedName(string(c.Type), at.Child("onPodConditions").Index(j).Child("type"))...)
			errs = append(errs, oneOf(c.Status, at.Child("onPodConditions").Index(j).Child("status"),
				corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown)...)
		}
	}
	return errs
}

func failureExitCodes(r *batchv1.PodFailurePolicyOnExitCodesRequirement, spec *corev1.PodSpec, p *field.Path) field.ErrorList {
	errs := oneOf(r.Operator, p.Child("operator"), batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn)
	if name := r.ContainerName; name != nil {
		named := func(c corev1.Container) bool { return c.Name == *name }
		if !slices.ContainsFunc(spec.Containers, named) && !slices.ContainsFunc(spec.InitContainers, named) {
			errs = append(errs, field.Invalid(p.Child("containerName"), *name, "must be one of the container or initContainer names in the pod template"))
		}
	}
	at := p.Child("values")
	if len(r.Values) == 0 {
		errs = append(errs, field.Invalid(at, r.Values, "at least one value is required"))
	} else if n := len(r.Values); n > maxFailureExitCodes {
		errs = append(errs, field.TooMany(at, n, maxFailureExitCodes))
	}
	seen := map[int32]bool{}
	for i, v := range r.Values {
		if seen[v] {
			errs = append(errs, field.Duplicate(at.Index(i), v))
		}
		seen[v] = true
		if v == 0 && r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
			errs = append(errs, field.Invalid(at.Index(i), v, "must not be 0 for the In operator"))
		}
	}
	if !slices.IsSorted(r.Values) {
		errs = append(errs, field.Invalid(at, r.Values, "must be ordered"))
	}
	return errs
}

func jobTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		text("Status", "Status of the job."),
		text("Completions", batchv1.JobStatus{}.SwaggerDoc()["succeeded"]),
		text("Duration", "Time required to complete the job."),
		ageColumn(),
	}, templateColumns(), columns{selectorColumn(batchv1.JobSpec{}.SwaggerDoc()["selector"])}), func(o *batchv1.Job, now time.Time) []any {
		names, images := templateCells(o.Spec.Template.Spec.Containers)
		return []any{
			o.Name, jobStatus(o), jobCompletions(o), jobDuration(o, now), age(o.CreationTimestamp, now),
			names, images, metav1.FormatLabelSelector(o.Spec.Selector),
		}
	})
}

func jobStatus(o *batchv1.Job) string {
	has := func(t batchv1.JobConditionType) bool {
		return slices.ContainsFunc(o.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == t && c.Status == corev1.ConditionTrue
		})
	}
	switch {
	case has(batchv1.JobComplete):
		return "Complete"
	case has(batchv1.JobFailed):
		return "Failed"
	case o.DeletionTimestamp != nil:
		return "Terminating"
	case has(batchv1.JobSuspended):
		return "Suspended"
	case has(batchv1.JobFailureTarget):
		return "FailureTarget"
	case has(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	default:
		return "Running"
	}
}

// jobCompletions of a work queue, which has no fixed number of completions,
// names the width of the queue.
func jobCompletions(o *batchv1.Job) string {
	if o.Spec.Completions != nil {
		return fmt.Sprintf("%d/%d", o.Status.Succeeded, *o.Spec.Completions)
	}
	if p := derefOr(o.Spec.Parallelism, 0); p > 1 {
		return fmt.Sprintf("%d/1 of %d", o.Status.Succeeded, p)
	}
	return fmt.Sprintf("%d/1", o.Status.Succeeded)
}

func jobDuration(o *batchv1.Job, now time.Time) string {
	switch {
	case o.Status.StartTime == nil:
		return ""
	case o.Status.CompletionTime == nil:
		return duration.HumanDuration(now.Sub(o.Status.StartTime.Time))
	default:
		return duration.HumanDuration(o.Status.CompletionTime.Sub(o.Status.StartTime.Time))
	}
}
