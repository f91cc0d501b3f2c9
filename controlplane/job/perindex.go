package job

// Limits on failures of each index of an Indexed Job
// (spec.backoffLimitPerIndex and spec.maxFailedIndexes, KEP-3850).
//
// How often an index has failed is known from its pods alone: each carries, as
// annotations, how often those before it have. So the last of an index that has
// failed is held by its finalizer until the next one is there.

import (
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/controlplane/children"
)

// limited tells whether failures are limited per index.
func limited(j *batchv1.Job) bool { return indexed(j) && j.Spec.BackoffLimitPerIndex != nil }

// giveUp adds the indexes that have failed for good, by the pods that are not
// counted yet, to those that had before. One that has succeeded, as with two pods
// of one index, has not failed.
func (l *look) giveUp() {
	if !limited(l.job) {
		return
	}
	if s := l.job.Status.FailedIndexes; s != nil {
		l.givenUp = parseIndexes(*s, completions(l.job)).without(l.completed)
	}
	if has(l.job, batchv1.JobFailureTarget) || has(l.job, batchv1.JobSuccessCriteriaMet) {
		return // pods that are stopped because the Job ends are no failure of their index
	}
	var more []int
	for _, p := range l.pods {
		if l.outcome(p) != corev1.PodFailed {
			continue
		}
		action, _ := l.match(p)
		used := action != batchv1.PodFailurePolicyActionIgnore && count(p, batchv1.JobIndexFailureCountAnnotation) >= int(*l.job.Spec.BackoffLimitPerIndex)
		if used || action == batchv1.PodFailurePolicyActionFailIndex {
			more = append(more, indexOf(p))
		}
	}
	l.givenUp = l.givenUp.with(more).without(l.completed)
}

// tooMany says how the Job ends by the indexes that have been given up; nil if it
// goes on.
func (l *look) tooMany() *condition {
	n, most := l.givenUp.size(), l.job.Spec.MaxFailedIndexes
	switch {
	case n == 0:
		return nil
	case most != nil && n > int(*most):
		return &condition{batchv1.JobFailed, batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes"}
	case n+l.completed.size() >= completions(l.job):
		return &condition{batchv1.JobFailed, batchv1.JobReasonFailedIndexes, "Job has failed indexes"}
	}
	return nil
}

// replaced returns, by index, the pods that have failed and whose place nobody has
// taken yet: of each index the last.
func (l *look) replaced() map[int]*corev1.Pod {
	out := make(map[int]*corev1.Pod)
	if !limited(l.job) {
		return out
	}
	taken := make(map[int]bool, len(l.active))
	for _, p := range l.active {
		taken[indexOf(p)] = true
	}
	for _, p := range l.pods {
		i := indexOf(p)
		if l.outcome(p) != corev1.PodFailed || taken[i] || l.completed.has(i) || l.givenUp.has(i) {
			continue
		}
		if last := out[i]; last == nil || l.later(p, last) {
			out[i] = p
		}
	}
	return out
}

// later tells whether p took the place of q, or came after it.
func (l *look) later(p, q *corev1.Pod) bool {
	if n, m := attempts(p), attempts(q); n != m {
		return n > m
	}
	return children.EndedAt(p, l.now).After(children.EndedAt(q, l.now))
}

// attempts is how many pods of its index had failed when p was made.
func attempts(p *corev1.Pod) int {
	return count(p, batchv1.JobIndexFailureCountAnnotation) + count(p, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

// count reads a number from an annotation; 0 if there is none that makes sense.
func count(p *corev1.Pod, annotation string) int {
	n, err := strconv.ParseInt(p.Annotations[annotation], 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int(n)
}

// tally notes on p how often pods of its index have failed: last is the latest of
// them, nil if p is the first.
func (l *look) tally(p, last *corev1.Pod) {
	failures, ignored := 0, 0
	if last != nil {
		failures, ignored = count(last, batchv1.JobIndexFailureCountAnnotation), count(last, batchv1.JobIndexIgnoredFailureCountAnnotation)
		if l.counts(last) {
			failures++
		} else {
			ignored++
		}
	}
	p.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(failures)
	delete(p.Annotations, batchv1.JobIndexIgnoredFailureCountAnnotation)
	if ignored > 0 {
		p.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(ignored)
	}
}

// resting returns how much longer to wait until the place of last is taken.
func (l *look) resting(last *corev1.Pod, least, most time.Duration) time.Duration {
	if last == nil {
		return 0
	}
	p := children.Pause{Failures: attempts(last) + 1, Last: children.EndedAt(last, l.now)}
	return p.Left(least, most, l.now)
}

// held tells whether a pod that has failed is still needed to tell the next one of
// its index.
func (l *look) held(p *corev1.Pod) bool {
	if l.end != nil || l.job.DeletionTimestamp != nil {
		return false
	}
	last := l.last[indexOf(p)]
	return last != nil && last.UID == p.UID && !children.Active(p)
}
