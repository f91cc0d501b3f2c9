package cronjob

// Making the Job of a scheduled time.

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// schedule makes the Job of the last scheduled time after since, if it is due. It
// returns how long it is until the next scheduled time; zero if none is to come.
func (l *look) schedule(ctx context.Context, since time.Time) (time.Duration, error) {
	s := l.parse()
	if s == nil {
		return 0, nil
	}
	if since.After(l.now.Add(maxAhead)) { // else nothing would be due until then
		since = l.now
		l.cj.Status.LastScheduleTime = &metav1.Time{Time: l.now}
	}
	due := latest(s, since, l.now)
	if due.IsZero() {
		return next(s, since, l.now), nil
	}
	if l.timely(s, since, due) {
		if err := l.start(ctx, due); err != nil {
			return 0, err
		}
	}
	return next(s, due, l.now), nil
}

// parse reads the schedule. It is nil if that is of no use, or is not to be used.
func (l *look) parse() cron.Schedule {
	spec := &l.cj.Spec
	if zone := spec.TimeZone; zone != nil {
		if _, err := time.LoadLocation(*zone); err != nil {
			l.event(corev1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", *zone, err)
			return nil
		}
	}
	if ptr.Deref(spec.Suspend, false) {
		return nil
	}
	if zoned(spec.Schedule) {
		l.event(corev1.EventTypeWarning, "UnsupportedSchedule", "CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", spec.Schedule)
	}
	s, err := parse(spec)
	if err != nil {
		l.event(corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", spec.Schedule, err)
		return nil
	}
	if s.Next(l.now).IsZero() {
		l.event(corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : it names no time in the next five years", spec.Schedule)
		return nil
	}
	return s
}

// timely tells whether it is not too late for the Job of due, and tells the user if it
// is, once, or if many times have been missed since.
func (l *look) timely(s cron.Schedule, since, due time.Time) bool {
	if seconds := l.cj.Spec.StartingDeadlineSeconds; seconds != nil {
		deadline := time.Duration(*seconds) * time.Second
		if l.now.Sub(due) > deadline {
			if l.tell(l.key(), due) {
				l.event(corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s", due.UTC().Format(time.RFC1123Z))
			}
			return false
		}
		if first := l.now.Add(-deadline); first.After(since) {
			since = first
		}
	}
	if missedMany(s, since, l.now) {
		l.event(corev1.EventTypeWarning, "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	return true
}

// start makes the Job of due, if the concurrency policy allows it.
func (l *look) start(ctx context.Context, due time.Time) error {
	if err := l.confirm(ctx); err != nil {
		return err
	}
	switch l.cj.Spec.ConcurrencyPolicy {
	case batchv1.ForbidConcurrent:
		if len(l.cj.Status.Active) > 0 {
			l.tell(l.key(), due)
			l.event(corev1.EventTypeNormal, "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
			return nil
		}
	case batchv1.ReplaceConcurrent:
		for len(l.cj.Status.Active) > 0 {
			ref := l.cj.Status.Active[0]
			if err := l.remove(ctx, ref.Name, ref.UID); err != nil {
				return err
			}
		}
	}
	j, err := l.create(ctx, l.job(due))
	if j == nil || err != nil {
		return err
	}
	if ended(j) == "" && !l.active(j.UID) {
		l.cj.Status.Active = append(l.cj.Status.Active, corev1.ObjectReference{
			APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job",
			Namespace: j.Namespace, Name: j.Name, UID: j.UID, ResourceVersion: j.ResourceVersion,
		})
	}
	l.cj.Status.LastScheduleTime = &metav1.Time{Time: due}
	return nil
}

// job is the Job of due. The annotation says due in the CronJob's time zone. The selector of a
// Job is generated: one in a template that an older server has stored would be refused.
func (l *look) job(due time.Time) *batchv1.Job {
	t := l.cj.Spec.JobTemplate.DeepCopy()
	t.Spec.Selector = nil
	annotations := make(map[string]string, len(t.Annotations)+1)
	maps.Copy(annotations, t.Annotations)
	// That the zone is known was seen when the schedule was read.
	if zone, err := time.LoadLocation(ptr.Deref(l.cj.Spec.TimeZone, "")); err == nil {
		annotations[batchv1.CronJobScheduledTimestampAnnotation] = due.In(zone).Format(time.RFC3339)
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", l.cj.Name, due.Unix()/60), Namespace: l.cj.Namespace,
			Labels: t.Labels, Annotations: annotations, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.cj, kind)},
		},
		Spec: t.Spec,
	}
}

// create makes j and returns it as the server has it. If it is there already, because
// the status was not written after it had been made, that one is returned. It returns
// nil if there can be none.
func (l *look) create(ctx context.Context, j *batchv1.Job) (*batchv1.Job, error) {
	client := l.client.BatchV1().Jobs(j.Namespace)
	made, err := client.Create(ctx, j, metav1.CreateOptions{})
	switch {
	case err == nil:
		l.event(corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", made.Name)
		return made, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, nil
	case apierrors.IsAlreadyExists(err):
		there, bad := client.Get(ctx, j.Name, metav1.GetOptions{})
		if bad != nil {
			return nil, fmt.Errorf("look up job %s: %w", j.Name, bad)
		}
		if metav1.IsControlledBy(there, l.cj) {
			return there, nil
		}
		l.event(corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return nil, nil
	}
	l.event(corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
	return nil, fmt.Errorf("create job %s: %w", j.Name, err)
}
