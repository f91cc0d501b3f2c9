package job

// What a Job and its pods say, and what follows from it.

import (
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/children"
)

// A look is what is known while one Job is looked at.
type look struct {
	job  *batchv1.Job // our own copy: its status is written to
	pods []*corev1.Pod
	now  time.Time

	active    []*corev1.Pod       // as they were at first
	succeeded int                 // in all, counted or not
	failed    int                 // in all, counted or not
	completed indexes             // of an Indexed Job: those that have succeeded
	givenUp   indexes             // of one that limits failures per index: those that have failed for good
	last      map[int]*corev1.Pod // of such a Job: see replaced

	running, ready, terminating int                // pods, as far as we have come
	freed                       map[types.UID]bool // of the finalizer, since
	end                         *condition         // how the Job ends; nil while it goes on
	news                        []news             // to be told once the status is written
}

// news is an event.
type news struct{ kind, reason, message string }

// A condition is how a Job ends: first by the interim type, then by the terminal
// one.
type condition struct {
	terminal        batchv1.JobConditionType
	reason, message string
}

func (c *condition) interim() batchv1.JobConditionType {
	if c.terminal == batchv1.JobComplete {
		return batchv1.JobSuccessCriteriaMet
	}
	return batchv1.JobFailureTarget
}

// newLook takes job and its pods in. A pod that an older version has noted both as succeeded and as
// failed has failed.
func newLook(job *batchv1.Job, pods []*corev1.Pod, now time.Time) *look {
	if u := job.Status.UncountedTerminatedPods; u != nil {
		u.Succeeded = slices.DeleteFunc(u.Succeeded, func(uid types.UID) bool { return slices.Contains(u.Failed, uid) })
	}
	l := &look{job: job, pods: pods, now: now, freed: make(map[types.UID]bool)}
	for _, p := range pods {
		switch {
		case children.Active(p):
			l.active = append(l.active, p)
			if children.Ready(p) {
				l.ready++
			}
		case children.Terminating(p):
			l.terminating++
		}
	}
	l.running = len(l.active)
	u := uncounted(job)
	l.succeeded = int(job.Status.Succeeded) + len(u.Succeeded)
	l.failed = int(job.Status.Failed) + len(u.Failed)
	if indexed(job) {
		l.completed = parseIndexes(job.Status.CompletedIndexes, completions(job))
	}
	var more []int
	for _, p := range pods {
		switch l.outcome(p) {
		case corev1.PodSucceeded:
			if indexed(job) {
				more = append(more, indexOf(p))
			} else if !slices.Contains(u.Succeeded, p.UID) {
				l.succeeded++
			}
		case corev1.PodFailed:
			if !slices.Contains(u.Failed, p.UID) && l.counts(p) {
				l.failed++
			}
		}
	}
	if indexed(job) {
		l.completed = l.completed.with(more)
		l.succeeded = l.completed.size()
	}
	l.giveUp()
	l.last = l.replaced()
	return l
}

// outcome is how a pod that has not been counted ended: PodSucceeded, PodFailed,
// or nothing if it has not ended or is out of the count.
func (l *look) outcome(p *corev1.Pod) corev1.PodPhase {
	switch {
	case !l.tracked(p), indexed(l.job) && !valid(l.job, indexOf(p)):
		return ""
	case p.Status.Phase == corev1.PodSucceeded && !indexed(l.job) && slices.Contains(uncounted(l.job).Failed, p.UID):
		return corev1.PodFailed // noted as it was being deleted; it counts once
	case p.Status.Phase == corev1.PodSucceeded:
		return corev1.PodSucceeded
	case p.Status.Phase == corev1.PodFailed:
		return corev1.PodFailed
	case p.DeletionTimestamp != nil && (!replacesFailedOnly(l.job) || l.hasFailed()):
		// It may be on a node that will never say how it ended, or the Job that has failed stops it.
		return corev1.PodFailed
	}
	return ""
}

// hasFailed tells whether the Job comes to its end by failing.
func (l *look) hasFailed() bool {
	return has(l.job, batchv1.JobFailureTarget) || l.end != nil && l.end.terminal == batchv1.JobFailed
}

// replacesFailedOnly tells whether a pod that is being deleted is replaced only
// once it has ended.
func replacesFailedOnly(j *batchv1.Job) bool {
	return j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed
}

// tracked tells whether p holds until it has been counted.
func (l *look) tracked(p *corev1.Pod) bool { return !l.freed[p.UID] && tracked(p) }

func tracked(p *corev1.Pod) bool {
	return slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer)
}

// free notes that pods are no longer tracked.
func (l *look) free(pods []*corev1.Pod) {
	for _, p := range pods {
		l.freed[p.UID] = true
	}
}

func uncounted(j *batchv1.Job) batchv1.UncountedTerminatedPods {
	if j.Status.UncountedTerminatedPods == nil {
		return batchv1.UncountedTerminatedPods{}
	}
	return *j.Status.UncountedTerminatedPods
}

func finished(j *batchv1.Job) bool {
	return has(j, batchv1.JobComplete) || has(j, batchv1.JobFailed)
}

func has(j *batchv1.Job, t batchv1.JobConditionType) bool {
	c := find(j, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

func find(j *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if j.Status.Conditions[i].Type == t {
			return &j.Status.Conditions[i]
		}
	}
	return nil
}

// setCondition sets a condition and tells whether that changes anything. One that
// is not there is not set to False.
func (l *look) setCondition(t batchv1.JobConditionType, status corev1.ConditionStatus, reason, message string) bool {
	c := find(l.job, t)
	if c == nil {
		if status != corev1.ConditionTrue {
			return false
		}
		l.job.Status.Conditions = append(l.job.Status.Conditions, batchv1.JobCondition{Type: t})
		c = &l.job.Status.Conditions[len(l.job.Status.Conditions)-1]
	}
	if c.Status == status && c.Reason == reason && c.Message == message {
		return false
	}
	at := metav1.NewTime(l.now)
	*c = batchv1.JobCondition{Type: t, Status: status, Reason: reason, Message: message, LastProbeTime: at, LastTransitionTime: at}
	return true
}

func suspended(j *batchv1.Job) bool { return j.Spec.Suspend != nil && *j.Spec.Suspend }

func indexed(j *batchv1.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion
}

// completions is how many pods must succeed; -1 if the pods say when it is
// enough.
func completions(j *batchv1.Job) int {
	if j.Spec.Completions == nil {
		return -1
	}
	return int(*j.Spec.Completions)
}

func parallelism(j *batchv1.Job) int {
	if j.Spec.Parallelism == nil {
		return 1
	}
	return int(*j.Spec.Parallelism)
}

// start notes when the Job began.
func (l *look) start() {
	if l.job.Status.StartTime == nil && !suspended(l.job) {
		at := metav1.NewTime(l.now)
		l.job.Status.StartTime = &at
	}
}

// deadline is how long the Job may go on; zero if there is no limit.
func (l *look) deadline() time.Duration {
	s := &l.job.Status
	if l.job.Spec.ActiveDeadlineSeconds == nil || s.StartTime == nil || suspended(l.job) || has(l.job, batchv1.JobSuspended) || l.end != nil {
		return 0
	}
	return max(time.Duration(*l.job.Spec.ActiveDeadlineSeconds)*time.Second-l.now.Sub(s.StartTime.Time), 1)
}

// verdict says whether the Job has come to an end before all its pods have
// succeeded, by what it was told in earlier looks or by what its pods say now.
func (l *look) verdict() {
	if c := find(l.job, batchv1.JobFailureTarget); c != nil && c.Status == corev1.ConditionTrue {
		l.end = &condition{batchv1.JobFailed, c.Reason, c.Message}
		return
	}
	if c := find(l.job, batchv1.JobSuccessCriteriaMet); c != nil && c.Status == corev1.ConditionTrue {
		l.end = &condition{batchv1.JobComplete, c.Reason, c.Message}
		return
	}
	limit := 6
	if l.job.Spec.BackoffLimit != nil {
		limit = int(*l.job.Spec.BackoffLimit)
	}
	rule, tooMany := l.matchedSuccess(), l.tooMany()
	switch message := l.fatal(); {
	case message != "":
		l.end = &condition{batchv1.JobFailed, batchv1.JobReasonPodFailurePolicy, message}
	case l.failed > limit, l.restartsAmount(limit):
		l.end = &condition{batchv1.JobFailed, batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit"}
	case l.overdue():
		l.end = &condition{batchv1.JobFailed, batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline"}
	case tooMany != nil:
		l.end = tooMany
	case rule >= 0:
		l.end = &condition{batchv1.JobComplete, batchv1.JobReasonSuccessPolicy, fmt.Sprintf("Matched rules at index %d", rule)}
	}
}

func (l *look) overdue() bool {
	d, s := l.job.Spec.ActiveDeadlineSeconds, l.job.Status.StartTime
	// One that is just going on again is given a new start in this look.
	resting := suspended(l.job) || has(l.job, batchv1.JobSuspended)
	return d != nil && s != nil && !resting && l.now.Sub(s.Time) >= time.Duration(*d)*time.Second
}

// restartsAmount tells whether containers that are restarted in place have used
// up the limit.
func (l *look) restartsAmount(limit int) bool {
	if l.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	restarts := 0
	for _, p := range l.pods {
		if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending {
			continue
		}
		for _, set := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for i := range set {
				restarts += int(set[i].RestartCount)
			}
		}
	}
	return restarts > 0 && restarts >= limit
}

// enough tells whether the Job is complete.
func (l *look) enough() bool {
	if l.running > 0 {
		return false
	}
	if n := completions(l.job); n >= 0 {
		return l.succeeded >= n
	}
	return l.succeeded > 0
}

// shortage returns how many pods more there should be, or fewer if it is
// negative.
func (l *look) shortage() int {
	if suspended(l.job) {
		return -len(l.active)
	}
	want := parallelism(l.job)
	if n := completions(l.job); n >= 0 {
		want = max(min(want, n-l.succeeded), 0)
	} else if l.succeeded > 0 {
		want = min(want, len(l.active)) // those that run may end; no more are needed
	}
	missing := want - len(l.active)
	if missing > 0 && replacesFailedOnly(l.job) {
		missing = max(missing-l.terminating, 0)
	}
	return missing
}
