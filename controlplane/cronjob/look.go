package cronjob

// What is known of a CronJob and its Jobs, and what of that has changed.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// A look is what is known while one CronJob is looked at.
type look struct {
	*Controller
	cj   *batchv1.CronJob // our own copy; its status is changed and then written
	jobs []*batchv1.Job   // that cj controls
	now  time.Time
	sure bool // whether the API server has cj as it was read
}

// act makes the world match the CronJob. It returns after how long to look again.
func (l *look) act(ctx context.Context, since time.Time) (time.Duration, error) {
	for _, do := range []func(context.Context) error{l.missing, l.observe, l.prune} {
		if err := do(ctx); err != nil {
			return 0, err
		}
	}
	if l.cj.DeletionTimestamp != nil {
		return 0, nil
	}
	return l.schedule(ctx, since)
}

// confirm asks the API server, once in a look, whether it has the CronJob as it was
// read. Its error is Quiet.
func (l *look) confirm(ctx context.Context) error {
	if l.sure {
		return nil
	}
	live, err := l.client.BatchV1().CronJobs(l.cj.Namespace).Get(ctx, l.cj.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return loop.Quiet(err)
	case err != nil:
		return fmt.Errorf("look up cron job %s: %w", l.cj.Name, err)
	case live.UID != l.cj.UID || live.ResourceVersion != l.cj.ResourceVersion:
		return loop.Quiet(errors.New("the cache is behind"))
	}
	l.sure = true
	return nil
}

func (l *look) key() string { return l.cj.Namespace + "/" + l.cj.Name }

func (l *look) event(kind, reason, format string, args ...any) {
	l.events.Eventf(l.cj, kind, reason, format, args...)
}

// missing takes those Jobs out of the status that there are no more.
func (l *look) missing(ctx context.Context) error {
	for _, ref := range slices.Clone(l.cj.Status.Active) {
		if slices.ContainsFunc(l.jobs, func(j *batchv1.Job) bool { return j.UID == ref.UID }) {
			continue
		}
		if err := l.confirm(ctx); err != nil {
			return err
		}
		// The cache may not show it yet.
		j, err := l.client.BatchV1().Jobs(l.cj.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && j.UID != ref.UID:
			l.event(corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
			l.drop(ref.UID)
		case err != nil:
			return fmt.Errorf("look up job %s: %w", ref.Name, err)
		}
	}
	return nil
}

// observe takes those Jobs out of the status that have ended, and notes when one last
// did well.
func (l *look) observe(ctx context.Context) error {
	for _, j := range l.jobs {
		how, active := ended(j), l.active(j.UID)
		if active == (how != "") { // there is something to tell
			if err := l.confirm(ctx); err != nil {
				return err
			}
			if active {
				l.drop(j.UID)
				l.event(corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, how)
			} else if stays, err := l.stays(ctx, j); err != nil {
				return err
			} else if stays {
				l.event(corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", j.Name)
			}
		}
		at, last := j.Status.CompletionTime, l.cj.Status.LastSuccessfulTime
		if how == batchv1.JobComplete && at != nil && (last == nil || last.Before(at)) {
			l.cj.Status.LastSuccessfulTime = at
		}
	}
	return nil
}

// stays tells whether the API server still has j, and it is not being deleted: the cache
// may not know yet of a Job that was deleted to make room for the next.
func (l *look) stays(ctx context.Context, j *batchv1.Job) (bool, error) {
	live, err := l.client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up job %s: %w", j.Name, err)
	}
	return live.UID == j.UID && live.DeletionTimestamp == nil, nil
}

// prune deletes the oldest of those ended Jobs that are more than the limits of the
// history.
func (l *look) prune(ctx context.Context) error {
	for how, limit := range map[batchv1.JobConditionType]*int32{
		batchv1.JobComplete: l.cj.Spec.SuccessfulJobsHistoryLimit, batchv1.JobFailed: l.cj.Spec.FailedJobsHistoryLimit,
	} {
		if limit == nil {
			continue
		}
		var jobs []*batchv1.Job
		for _, j := range l.jobs {
			if ended(j) == how && j.DeletionTimestamp == nil {
				jobs = append(jobs, j)
			}
		}
		slices.SortFunc(jobs, older)
		for _, j := range jobs[:max(len(jobs)-int(*limit), 0)] {
			if err := l.confirm(ctx); err != nil {
				return err
			}
			if err := l.remove(ctx, j.Name, j.UID); err != nil {
				return err
			}
		}
	}
	return nil
}

// older compares when Jobs began; one that never did counts as the youngest.
func older(a, b *batchv1.Job) int {
	s, t := a.Status.StartTime, b.Status.StartTime
	switch {
	case s == nil && t != nil:
		return 1
	case s != nil && t == nil:
		return -1
	case s == nil:
		return cmp.Compare(a.Name, b.Name)
	}
	return cmp.Or(s.Compare(t.Time), cmp.Compare(a.Name, b.Name))
}

// remove deletes a Job, with its pods, and takes it out of the status.
func (l *look) remove(ctx context.Context, name string, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	err := l.client.BatchV1().Jobs(l.cj.Namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid},
	})
	switch {
	case err == nil:
		l.event(corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", name)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it is gone, or another one by now
	default:
		l.event(corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return fmt.Errorf("delete job %s: %w", name, err)
	}
	l.drop(uid)
	return nil
}

// active tells whether the status names the Job with this uid.
func (l *look) active(uid types.UID) bool {
	return slices.ContainsFunc(l.cj.Status.Active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
}

// drop takes the Job with this uid out of the status.
func (l *look) drop(uid types.UID) {
	l.cj.Status.Active = slices.DeleteFunc(l.cj.Status.Active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
}

// ended is how j has ended; empty if it has not.
func ended(j *batchv1.Job) batchv1.JobConditionType {
	for i := range j.Status.Conditions {
		c := &j.Status.Conditions[i]
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}
