package job

// Tests of what the API demands of a Job's status.

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestEndHasStart: a Job that has ended has a start, not after its end, though it rested or another
// clock said when it began.
func TestEndHasStart(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, start := range map[string]*metav1.Time{"rested": nil, "clock ahead": ptr.To(metav1.NewTime(now.Add(time.Minute)))} {
		job := newJob()
		job.Status.StartTime = start
		l := newLook(job, nil, now)
		l.end = &condition{terminal: batchv1.JobComplete}
		l.finish()
		s := l.job.Status
		if s.StartTime == nil || s.CompletionTime == nil || s.CompletionTime.Before(s.StartTime) {
			t.Errorf("%s: from %v to %v", name, s.StartTime, s.CompletionTime)
		}
	}
}

// TestReadyOfActive: when pods could not all be deleted, no more are ready than run.
func TestReadyOfActive(t *testing.T) {
	l := newLook(newJob(), nil, time.Now())
	l.running, l.ready = 1, 2
	l.sums()
	if s := l.job.Status; *s.Ready != 1 || s.Active != 1 {
		t.Errorf("%d of %d are ready", *s.Ready, s.Active)
	}
}

// TestGivenUpSucceeds: an index that has been given up and yet succeeds has succeeded.
func TestGivenUpSucceeds(t *testing.T) {
	job := newJob(times(4, 2), perIndex(1))
	job.Status.CompletedIndexes, job.Status.FailedIndexes = "0", ptr.To("0-3")
	p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	p.Finalizers, p.Annotations = []string{batchv1.JobTrackingFinalizer}, map[string]string{batchv1.JobCompletionIndexAnnotation: "2"}
	l := newLook(job, []*corev1.Pod{p}, time.Now())
	if l.completed.String() != "0,2" || l.givenUp.String() != "1,3" {
		t.Errorf("%s have succeeded, %s are given up", l.completed, l.givenUp)
	}
}
