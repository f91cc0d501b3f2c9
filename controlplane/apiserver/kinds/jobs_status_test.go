// Rules for the status of jobs.

package kinds

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type statusOfJob = *batchv1.Job

// at is a time of the tests, s seconds after the first.
func at(s int64) *metav1.Time { return ptr(metav1.NewTime(time.Unix(1_700_000_000+s, 0))) }

// says gives a job conditions that are true, and makes those false that begin with "not ".
func says(types ...string) func(statusOfJob) {
	return func(o statusOfJob) {
		o.Status.Conditions = nil
		for _, t := range types {
			status := corev1.ConditionTrue
			if len(t) > 4 && t[:4] == "not " {
				t, status = t[4:], corev1.ConditionFalse
			}
			o.Status.Conditions = append(o.Status.Conditions, batchv1.JobCondition{Type: batchv1.JobConditionType(t), Status: status})
		}
	}
}

// also makes one change of several.
func also(changes ...func(statusOfJob)) func(statusOfJob) {
	return func(o statusOfJob) {
		for _, c := range changes {
			c(o)
		}
	}
}

// aJob returns jobs of five completions that run two pods, changed.
func aJob(t *testing.T, changes ...func(statusOfJob)) func() statusOfJob {
	return func() statusOfJob {
		o := defaulted[batchv1.Job](t, `{metadata: {name: j}, spec: {completions: 5, parallelism: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`)
		o.Status = batchv1.JobStatus{StartTime: at(0), Active: 2, Ready: ptr[int32](1), Terminating: ptr[int32](0), Succeeded: 1, Failed: 1}
		also(changes...)(o)
		return o
	}
}

func idle(o statusOfJob) { o.Status.Active, o.Status.Ready = 0, ptr[int32](0) }
func done(o statusOfJob) { o.Status.CompletionTime = at(9) }
func numbered(o statusOfJob) {
	o.Spec.CompletionMode, o.Spec.BackoffLimitPerIndex = ptr(batchv1.IndexedCompletion), ptr[int32](1)
}

const aboutConditions = "status.conditions: Invalid value: cannot "

func TestJobEnds(t *testing.T) {
	t.Parallel()
	mutateUpdate(t, aJob(t), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"complete", also(idle, done, says("SuccessCriteriaMet", "Complete")), nil},
		{"failed", also(idle, says("FailureTarget", "Failed")), nil},
		{"complete without cause", also(idle, done, says("Complete")), bad(aboutConditions + "set Complete=True condition without the SuccessCriteriaMet=true condition")},
		{"failed without cause", also(idle, says("Failed")), bad(aboutConditions + "set Failed=True condition without the FailureTarget=true condition")},
		{
			"both", also(idle, done, says("SuccessCriteriaMet", "Complete", "FailureTarget", "Failed")),
			bad(aboutConditions+"set Complete=True and Failed=true", aboutConditions+"set Complete=True and FailureTarget=true",
				aboutConditions+"set SuccessCriteriaMet=True and Failed=true", aboutConditions+"set SuccessCriteriaMet=True and FailureTarget=true"),
		},
		{"complete at no time", also(idle, says("SuccessCriteriaMet", "Complete")), bad("status.completionTime: Required value: completionTime is required for Complete jobs")},
		{"a time of completion before it", also(idle, done, says("SuccessCriteriaMet")), bad("status.completionTime: Invalid value: \"2023-11-14T22:13:29Z\": cannot set completionTime when there is no Complete=True condition")},
		{
			"complete before it began", also(idle, func(o statusOfJob) { o.Status.CompletionTime = at(-1) }, says("SuccessCriteriaMet", "Complete")),
			bad("status.completionTime: Invalid value: \"2023-11-14T22:13:19Z\": must be equal to or after `startTime`"),
		},
		{"complete with pods", also(done, says("SuccessCriteriaMet", "Complete")), bad("status.active: Invalid value: 2: active>0 is invalid for finished job")},
		{
			"failed with pods that end", also(idle, func(o statusOfJob) { o.Status.Terminating = ptr[int32](1) }, says("FailureTarget", "Failed")),
			bad("status.terminating: Invalid value: 1: terminating>0 is invalid for finished job"),
		},
		{"failed with pods to be counted", also(idle, func(o statusOfJob) {
			o.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Failed: []types.UID{"a"}}
		}, says("FailureTarget", "Failed")), bad("status.uncountedTerminatedPods: Invalid value: {\"failed\":[\"a\"]}: must be empty for finished job")},
		{
			"complete by no policy", also(idle, done, func(o statusOfJob) { o.Spec.SuccessPolicy = &batchv1.SuccessPolicy{} }, says("Complete")),
			bad(aboutConditions+"set Complete=True condition without", aboutConditions+"set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True"),
		},
	})
	mutateUpdate(t, aJob(t, idle, func(o statusOfJob) { o.Status.StartTime = nil }), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"failed without a beginning", says("FailureTarget", "Failed"), bad("status.startTime: Required value: startTime is required for finished job")},
		{"nothing to do", also(done, says("SuccessCriteriaMet", "Complete"), func(o statusOfJob) { o.Spec.Suspend, o.Spec.Completions = ptr(true), ptr[int32](0) }), nil},
	})
	mutateUpdate(t, aJob(t, idle, done, says("SuccessCriteriaMet", "Complete")), validateJobStatusUpdate, []mutation[statusOfJob]{
		{
			"not after all", says(), bad(aboutConditions+"disable the terminal Complete=True", aboutConditions+"disable the SuccessCriteriaMet=True condition",
				"status.completionTime: Invalid value: \"2023-11-14T22:13:29Z\": cannot set completionTime when there is no"),
		},
		{
			"turned false", says("SuccessCriteriaMet", "not Complete"), bad(aboutConditions+"disable the terminal Complete=True",
				"status.completionTime: Invalid value: \"2023-11-14T22:13:29Z\": cannot set completionTime when there is no"),
		},
		{"later", func(o statusOfJob) { o.Status.CompletionTime = at(10) }, bad("status.completionTime: Invalid value: \"2023-11-14T22:13:30Z\": field is immutable")},
		{"at no time", func(o statusOfJob) { o.Status.CompletionTime = nil }, bad("status.completionTime: Required value")},
	})
	mutateUpdate(t, aJob(t, idle, says("FailureTarget")), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"no failure after all", says(), bad(aboutConditions + "disable the terminal FailureTarget=True condition")},
	})
	// What was stored before there were these rules can be written as long as it stays.
	more := func(o statusOfJob) { o.Status.Succeeded++ }
	for _, types := range [][]string{
		{"SuccessCriteriaMet", "FailureTarget", "Failed"}, {"SuccessCriteriaMet", "FailureTarget"}, {"SuccessCriteriaMet", "Failed"}, {"Complete"},
	} {
		mutateUpdate(t, aJob(t, says(types...), func(o statusOfJob) { o.Spec.SuccessPolicy = &batchv1.SuccessPolicy{} }), validateJobStatusUpdate, []mutation[statusOfJob]{
			{"what is at odds stays", more, nil},
		})
	}
	mutateUpdate(t, aJob(t, says("Complete")), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"one more", func(o statusOfJob) { o.Status.Succeeded++ }, nil},
		{"a cause", says("Complete", "SuccessCriteriaMet"), bad(aboutConditions + "set SuccessCriteriaMet=True for Job already has Complete=true conditions")},
	})
}

func TestJobCounts(t *testing.T) {
	t.Parallel()
	shrunk := also(numbered, func(o statusOfJob) { o.Spec.Completions = ptr[int32](2) })
	mutateUpdate(t, aJob(t), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"fewer failures", func(o statusOfJob) { o.Status.Failed = 0 }, bad("status.failed: Invalid value: 0: cannot decrease the failed counter")},
		{"fewer successes", func(o statusOfJob) { o.Status.Succeeded = 0 }, bad("status.succeeded: Invalid value: 0: cannot decrease the succeeded counter")},
		{"more ready than there are", func(o statusOfJob) { o.Status.Ready = ptr[int32](3) }, bad("status.ready: Invalid value: 3: cannot set more ready pods than active")},
		{"negative", func(o statusOfJob) { o.Status.Active, o.Status.Ready = -1, ptr[int32](-1) }, bad("status.active: Invalid value", "status.ready: Invalid value")},
		{"counted twice", func(o statusOfJob) {
			o.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"a", ""}, Failed: []types.UID{"b", "a"}}
		}, bad(`status.uncountedTerminatedPods.failed[1]: Duplicate value: "a"`, `status.uncountedTerminatedPods.succeeded[1]: Invalid value: "": must not be empty`)},
		{"counted once", func(o statusOfJob) {
			o.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"a"}, Failed: []types.UID{"b"}}
		}, nil},
		{"begins anew", func(o statusOfJob) { o.Status.StartTime = at(1) }, bad("status.startTime: Invalid value: \"2023-11-14T22:13:21Z\": field is immutable for unsuspended job once set")},
		{"never began", func(o statusOfJob) { o.Status.StartTime = nil }, bad("status.startTime: Invalid value: null: field is immutable for unsuspended job once set")},
		{"rests", func(o statusOfJob) { o.Spec.Suspend, o.Status.StartTime = ptr(true), nil }, nil},
		{"indexes of none", func(o statusOfJob) { o.Status.CompletedIndexes = "1" }, bad(`status.completedIndexes: Invalid value: "1": cannot set non-empty completedIndexes when non-indexed completion mode`)},
		{"failed indexes of none", func(o statusOfJob) { o.Status.FailedIndexes = ptr("") }, bad(`status.failedIndexes: Invalid value: "": cannot set non-null failedIndexes when backoffLimitPerIndex is null`)},
	})
	mutateUpdate(t, aJob(t, says("Suspended")), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"goes on", also(says("not Suspended"), func(o statusOfJob) { o.Status.StartTime = at(1) }), nil},
	})
	mutateUpdate(t, aJob(t, shrunk), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"fewer successes of fewer", func(o statusOfJob) { o.Status.Succeeded = 0 }, nil},
	})
	// The job was made smaller, and runs fewer pods at once by now.
	fewer := func(completed string) func(statusOfJob) {
		return func(o statusOfJob) { o.Status.Succeeded, o.Status.CompletedIndexes = 2, completed }
	}
	was := also(fewer("0-3"), func(o statusOfJob) {
		o.Spec.Completions, o.Spec.Parallelism, o.Status.Succeeded = ptr[int32](2), ptr[int32](1), 4
	})
	mutateUpdate(t, aJob(t, numbered, was), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"fewer indexes", fewer("0,1"), nil},
		{"fewer successes of the same indexes", fewer("0-3"), bad("status.succeeded: Invalid value: 2: cannot decrease the succeeded counter")},
	})
	mutateUpdate(t, aJob(t, was), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"indexes of none", fewer(""), bad("status.succeeded: Invalid value: 2: cannot decrease the succeeded counter")},
	})
}

func TestJobIndexes(t *testing.T) {
	t.Parallel()
	sets := func(completed, failed string) func(statusOfJob) {
		return func(o statusOfJob) { o.Status.CompletedIndexes, o.Status.FailedIndexes = completed, &failed }
	}
	mutateUpdate(t, aJob(t, numbered), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"some", sets("0,2-4", "1"), nil},
		{"beyond the last", sets("5", ""), bad(`status.completedIndexes: Invalid value: "5": error parsing completedIndexes: too large index: "5"`)},
		{"failed beyond the last", sets("", "1,5"), bad(`status.failedIndexes: Invalid value: "1,5": error parsing failedIndexes: too large index: "5"`)},
		{"rubbish", sets("1,x", "4-2"), bad(`status.completedIndexes: Invalid value: "1,x": error parsing completedIndexes: cannot convert string to integer for index: "x"`,
			`status.failedIndexes: Invalid value: "4-2": error parsing failedIndexes: non-increasing order, previous: 4, current: 2`)},
		{"of both kinds", sets("0,2-4", "1,3"), bad(`status.failedIndexes: Invalid value: "1,3": failedIndexes and completedIndexes overlap at index: 3`)},
	})
	mutateUpdate(t, aJob(t, numbered, sets("7", "9")), validateJobStatusUpdate, []mutation[statusOfJob]{
		{"stored before it was made smaller", func(o statusOfJob) { o.Status.Active-- }, nil},
	})
}
