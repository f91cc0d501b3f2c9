package job

// Counting pods that have ended, and writing the status.

import (
	"context"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// count takes pods that have ended through the steps that the package comment
// tells, as far as it gets, and writes the status. stored is the Job as it was
// read.
func (c *Controller) count(ctx context.Context, o children.Owner, stored *batchv1.Job, l *look) error {
	l.settle()
	noted, free := l.note()
	l.sums()
	if l.end != nil {
		l.setCondition(l.end.interim(), corev1.ConditionTrue, l.end.reason, l.end.message)
	}
	if len(free) > 0 {
		// What the finalizers guard must be written down before they go.
		if err := c.write(ctx, &stored, l); err != nil {
			return err
		}
		c.remember(l, noted)
		if _, err := c.pods.Free(ctx, o, free); err != nil {
			return err
		}
		l.free(free)
		l.settle()
	}
	l.finish()
	return c.write(ctx, &stored, l)
}

// settle replaces the uids of pods whose finalizer is off by numbers.
func (l *look) settle() {
	held := make(map[types.UID]bool, len(l.pods))
	for _, p := range l.pods {
		held[p.UID] = l.tracked(p)
	}
	s, u := &l.job.Status, uncounted(l.job)
	keep := func(in []types.UID, n *int32) []types.UID {
		out := slices.DeleteFunc(slices.Clone(in), func(uid types.UID) bool { return !held[uid] })
		*n += int32(len(in) - len(out))
		return out
	}
	u.Succeeded, u.Failed = keep(u.Succeeded, &s.Succeeded), keep(u.Failed, &s.Failed)
	s.UncountedTerminatedPods = &u
	if indexed(l.job) {
		s.CompletedIndexes, s.Succeeded = l.completed.String(), int32(l.completed.size())
	}
	if limited(l.job) {
		givenUp := l.givenUp.String()
		s.FailedIndexes = &givenUp
	}
}

// note writes the uids of pods that have ended into the status. It returns those
// that it noted, and those whose finalizer may go once that is stored.
func (l *look) note() (noted, free []*corev1.Pod) {
	u := l.job.Status.UncountedTerminatedPods
	for _, p := range l.pods {
		if len(free) >= children.MaxWrites {
			break // the next look goes on
		}
		switch l.outcome(p) {
		case corev1.PodSucceeded:
			if !indexed(l.job) && !slices.Contains(u.Succeeded, p.UID) {
				u.Succeeded = append(u.Succeeded, p.UID)
			}
			noted = append(noted, p)
		case corev1.PodFailed:
			if l.held(p) {
				continue // a later look counts it
			}
			if slices.Contains(u.Failed, p.UID) {
				break // noted by an earlier look
			}
			if l.counts(p) {
				u.Failed = append(u.Failed, p.UID)
			}
			noted = append(noted, p)
		default:
			if !l.tracked(p) || !l.idle(p) {
				continue
			}
		}
		free = append(free, p)
	}
	return noted, free
}

// idle tells whether a pod that does not count is over with: it is of no index
// that the Job has, or the Job is being deleted and the pod with it.
func (l *look) idle(p *corev1.Pod) bool {
	if indexed(l.job) && !valid(l.job, indexOf(p)) && !children.Active(p) {
		return true
	}
	return l.job.DeletionTimestamp != nil && p.DeletionTimestamp != nil
}

func (l *look) sums() {
	s := &l.job.Status
	ready, terminating := int32(min(max(l.ready, 0), max(l.running, 0))), int32(max(l.terminating, 0))
	s.Active, s.Ready, s.Terminating = int32(max(l.running, 0)), &ready, &terminating
}

// finish adds the terminal condition if nothing runs any more and all is
// counted. The API wants the Job to have a start then, and no end before it.
func (l *look) finish() {
	s := &l.job.Status
	u := uncounted(l.job)
	if l.end == nil || l.running > 0 || l.terminating > 0 || len(u.Succeeded)+len(u.Failed) > 0 || slices.ContainsFunc(l.pods, l.tracked) {
		return
	}
	l.setCondition(l.end.terminal, corev1.ConditionTrue, l.end.reason, l.end.message)
	at := metav1.NewTime(l.now)
	if s.StartTime == nil { // it rests
		s.StartTime = &at
	}
	if l.end.terminal == batchv1.JobComplete {
		s.CompletionTime = &at
		if at.Before(s.StartTime) {
			s.CompletionTime = s.StartTime.DeepCopy()
		}
		l.news = append(l.news, news{corev1.EventTypeNormal, "Completed", "Job completed"})
		return
	}
	l.news = append(l.news, news{corev1.EventTypeWarning, l.end.reason, l.end.message})
}

// suspension notes whether the Job rests. It has no start then: the deadline
// starts anew when it goes on.
func (l *look) suspension() {
	if suspended(l.job) {
		if l.setCondition(batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended") {
			l.job.Status.StartTime = nil
			l.news = append(l.news, news{corev1.EventTypeNormal, "Suspended", "Job suspended"})
		}
		return
	}
	if l.setCondition(batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed") {
		at := metav1.NewTime(l.now)
		l.job.Status.StartTime = &at
		l.news = append(l.news, news{corev1.EventTypeNormal, "Resumed", "Job resumed"})
	}
}

// write stores the status if it is not that of *stored, which becomes what is
// stored, and tells the news.
func (c *Controller) write(ctx context.Context, stored **batchv1.Job, l *look) error {
	if !equality.Semantic.DeepEqual((*stored).Status, l.job.Status) {
		out, err := c.client.BatchV1().Jobs(l.job.Namespace).UpdateStatus(ctx, l.job, metav1.UpdateOptions{})
		if err != nil { // the pods of a job that is gone lose their finalizers as orphans do
			return loop.StatusError("job "+l.job.Name, err)
		}
		*stored, l.job = out, out.DeepCopy()
		c.mu.Lock()
		c.written[key(l)] = out.ResourceVersion
		c.mu.Unlock()
	}
	for _, n := range l.news {
		c.events.Event(l.job, n.kind, n.reason, n.message)
	}
	l.news = nil
	return nil
}
