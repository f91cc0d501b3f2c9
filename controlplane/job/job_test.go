package job

// Tests of the life of a Job, in fake time.

import (
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/children"
)

func TestCompletes(t *testing.T) {
	run(t, func(w *world) {
		for i := range 3 {
			active := w.active()
			if len(active) != min(2, 3-i) {
				w.Fatalf("%d have succeeded: %d active", i, len(active))
			}
			p := active[0]
			ref := metav1.GetControllerOf(p)
			if ref == nil || ref.Kind != "Job" || ref.APIVersion != "batch/v1" || ref.UID != "job-uid" || !ptr.Deref(ref.BlockOwnerDeletion, false) || !tracked(p) || p.GenerateName != "j-" {
				w.Errorf("pod %+v", p.ObjectMeta)
			}
			w.succeed(p)
		}
		w.expect("in the end", "active 0 terminating 0 succeeded 3 failed 0 SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached")
		s := w.job().Status
		if s.StartTime == nil || s.CompletionTime == nil || s.CompletionTime.Before(s.StartTime) || s.UncountedTerminatedPods == nil {
			w.Errorf("status %+v", s)
		}
		for _, p := range w.pods() {
			if len(p.Finalizers) != 0 {
				w.Errorf("%s holds for %v", p.Name, p.Finalizers)
			}
		}
		if e := w.heard(); !slices.Equal(e, []string{"Normal Completed Job completed"}) {
			w.Errorf("events %q", e)
		}
		if w.creates() != 3 {
			w.Errorf("%d pods made", w.creates())
		}
		requests := len(w.client.Actions())
		w.settle(time.Hour)
		if n := len(w.client.Actions()); n != requests {
			w.Errorf("%d requests for a Job that has finished", n-requests)
		}
	}, newJob(times(3, 2)))
}

// TestInterimFirst: the interim condition is stored before the terminal one.
func TestInterimFirst(t *testing.T) {
	for _, tc := range []struct {
		phase             corev1.PodPhase
		interim, terminal batchv1.JobConditionType
	}{
		{corev1.PodSucceeded, batchv1.JobSuccessCriteriaMet, batchv1.JobComplete},
		{corev1.PodFailed, batchv1.JobFailureTarget, batchv1.JobFailed},
	} {
		t.Run(string(tc.phase), func(t *testing.T) {
			run(t, func(w *world) {
				watch, err := w.client.BatchV1().Jobs("ns").Watch(w.ctx, metav1.ListOptions{})
				if err != nil {
					w.Fatal(err)
				}
				defer watch.Stop()
				w.end(w.first().Name, tc.phase, 1)
				w.settle(0)
				alone := false
				for len(watch.ResultChan()) > 0 {
					j, ok := (<-watch.ResultChan()).Object.(*batchv1.Job)
					if !ok {
						continue
					}
					alone = alone || has(j, tc.interim) && !has(j, tc.terminal)
				}
				if j := w.job(); !alone || !has(j, tc.interim) || !has(j, tc.terminal) {
					w.Errorf("alone at first: %v; in the end %+v", alone, j.Status.Conditions)
				}
			}, newJob(limit(0)))
		})
	}
}

// TestBackoff: after failures the next pod comes 10 s, 20 s, 40 s later, and
// after the last one none.
func TestBackoff(t *testing.T) {
	run(t, func(w *world) {
		for i, pause := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
			w.fail(w.first())
			w.expect(fmt.Sprint("failure ", i+1), fmt.Sprintf("active 0 terminating 0 succeeded 0 failed %d", i+1))
			w.settle(pause - time.Second)
			if n := len(w.active()); n != 0 {
				w.Fatalf("%d active before %s", n, pause)
			}
			if i == 1 { // another controller goes by what is left to see
				w.stop()
				w.start()
			}
			w.settle(time.Second)
			if n := len(w.active()); n != 1 {
				w.Fatalf("%d active after %s", n, pause)
			}
		}
		w.fail(w.first())
		w.expect("once too often", "active 0 terminating 0 succeeded 0 failed 4 FailureTarget/BackoffLimitExceeded Failed/BackoffLimitExceeded")
		if e := w.heard(); !slices.Equal(e, []string{"Warning BackoffLimitExceeded Job has reached the specified backoff limit"}) {
			w.Errorf("events %q", e)
		}
		if w.job().Status.CompletionTime != nil {
			w.Error("a Job that failed has a completion time")
		}
		w.settle(time.Hour)
		if w.creates() != 4 {
			w.Errorf("%d pods made", w.creates())
		}
	}, newJob(limit(3)))
}

func TestPause(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		failures int
		want     time.Duration
	}{{0, 0}, {1, 10 * time.Second}, {2, 20 * time.Second}, {5, 160 * time.Second}, {6, 320 * time.Second}, {7, 6 * time.Minute}, {1 << 30, 6 * time.Minute}} {
		p := children.Pause{Failures: tc.failures, Last: at}
		if got := p.Left(DefaultMinBackoff, DefaultMaxBackoff, at); got != tc.want {
			t.Errorf("%d failures: %s, want %s", tc.failures, got, tc.want)
		}
		if got := p.Left(DefaultMinBackoff, DefaultMaxBackoff, at.Add(time.Hour)); got != 0 {
			t.Errorf("%d failures, an hour later: %s", tc.failures, got)
		}
	}
}

// TestFailureStopsOthers: what still runs of a Job that has failed is deleted,
// and the Job has failed only when that is over.
func TestFailureStopsOthers(t *testing.T) {
	run(t, func(w *world) {
		pods := w.active()
		w.bind(pods[1])
		w.fail(pods[0])
		w.expect("one has failed", "active 0 terminating 1 succeeded 0 failed 3 FailureTarget/BackoffLimitExceeded")
		w.remove(pods[1], true)
		w.expect("the others are gone", "active 0 terminating 0 succeeded 0 failed 3 FailureTarget/BackoffLimitExceeded Failed/BackoffLimitExceeded")
		if w.creates() != 3 {
			w.Errorf("%d pods made", w.creates())
		}
	}, newJob(times(3, 3), limit(0)))
}

func TestDeadline(t *testing.T) {
	run(t, func(w *world) {
		w.settle(29 * time.Second)
		w.expect("before", "active 1 terminating 0 succeeded 0 failed 0")
		w.settle(time.Second)
		w.expect("after", "active 0 terminating 0 succeeded 0 failed 1 FailureTarget/DeadlineExceeded Failed/DeadlineExceeded")
		if e := w.heard(); !slices.Equal(e, []string{"Warning DeadlineExceeded Job was active longer than specified deadline"}) {
			w.Errorf("events %q", e)
		}
	}, newJob(func(s *batchv1.JobSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](30) }))
}

// TestSuspend: a Job that rests has no pods, loses nothing, and its deadline
// does not run.
func TestSuspend(t *testing.T) {
	run(t, func(w *world) {
		w.expect("at first", "active 0 terminating 0 succeeded 0 failed 0 Suspended/JobSuspended")
		if s := w.job().Status; s.StartTime != nil || w.creates() != 0 {
			w.Errorf("started at %s with %d pods", s.StartTime, w.creates())
		}
		w.change(suspend(false))
		w.expect("goes on", "active 2 terminating 0 succeeded 0 failed 0")
		began := w.job().Status.StartTime
		pods := w.active()
		w.bind(pods[0])
		w.bind(pods[1])
		w.succeed(pods[0])
		w.change(suspend(true))
		w.expect("rests", "active 0 terminating 1 succeeded 1 failed 0 Suspended/JobSuspended")
		if at := w.job().Status.StartTime; at != nil {
			w.Errorf("it rests, and began at %s", at)
		}
		for _, p := range w.pods() {
			w.remove(p, true)
		}
		w.settle(time.Hour)
		w.expect("rests for long", "active 0 terminating 0 succeeded 1 failed 0 Suspended/JobSuspended")
		w.change(suspend(false))
		w.expect("goes on again", "active 2 terminating 0 succeeded 1 failed 0")
		if again := w.job().Status.StartTime; !began.Before(again) {
			w.Errorf("the deadline runs from %s, as it did from %s", again, began)
		}
		w.succeed(w.first())
		w.succeed(w.first())
		w.expect("in the end", "active 0 terminating 0 succeeded 3 failed 0 SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached")
		want := []string{"Normal Suspended Job suspended", "Normal Resumed Job resumed", "Normal Suspended Job suspended", "Normal Resumed Job resumed", "Normal Completed Job completed"}
		if e := w.heard(); !slices.Equal(e, want) {
			w.Errorf("events %q", e)
		}
	}, newJob(times(3, 2), suspend(true), func(s *batchv1.JobSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](600) }))
}

// TestSuspendedCompletes: a Job with enough successes is complete though it is suspended.
func TestSuspendedCompletes(t *testing.T) {
	const done = " SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached"
	t.Run("no pods needed", func(t *testing.T) {
		run(t, func(w *world) {
			w.expect("at once", "active 0 terminating 0 succeeded 0 failed 0"+done)
		}, newJob(times(0, 1), suspend(true)))
	})
	t.Run("enough before", func(t *testing.T) {
		job := newJob(times(2, 1), suspend(true))
		job.Status.Succeeded = 2
		run(t, func(w *world) { w.expect("at once", "active 0 terminating 0 succeeded 2 failed 0"+done) }, job)
	})
	t.Run("queue", func(t *testing.T) {
		run(t, func(w *world) {
			pods := w.active()
			w.bind(pods[0])
			w.succeed(pods[1])
			w.change(suspend(true))
			w.expect("suspended", "active 0 terminating 1 succeeded 1 failed 0 SuccessCriteriaMet/CompletionsReached")
			w.remove(pods[0], true)
			w.expect("in the end", "active 0 terminating 0 succeeded 1 failed 0"+done)
			if e := w.heard(); !slices.Equal(e, []string{"Normal Completed Job completed"}) {
				w.Errorf("events %q", e)
			}
		}, newJob(func(s *batchv1.JobSpec) { s.Completions, s.Parallelism = nil, ptr.To[int32](2) }))
	})
}

// TestParallelism: more at once or fewer, as the spec says, and no failures for
// those that are not needed.
func TestParallelism(t *testing.T) {
	run(t, func(w *world) {
		w.change(times(10, 5))
		w.expect("more", "active 5 terminating 0 succeeded 0 failed 0")
		w.change(times(10, 1))
		w.expect("fewer", "active 1 terminating 0 succeeded 0 failed 0")
		w.change(times(10, 0))
		w.expect("none", "active 0 terminating 0 succeeded 0 failed 0")
		w.settle(time.Hour)
		w.change(times(10, 3))
		w.expect("again", "active 3 terminating 0 succeeded 0 failed 0")
	}, newJob(times(10, 2)))
}

// TestWorkQueue: without completions, the first success ends the making of pods
// and the last end the Job.
func TestWorkQueue(t *testing.T) {
	run(t, func(w *world) {
		w.expect("at first", "active 3 terminating 0 succeeded 0 failed 0")
		pods := w.active()
		w.succeed(pods[0])
		w.expect("one is done", "active 2 terminating 0 succeeded 1 failed 0")
		w.fail(pods[1])
		w.settle(time.Minute)
		w.expect("one has failed", "active 1 terminating 0 succeeded 1 failed 1")
		w.succeed(pods[2])
		w.expect("in the end", "active 0 terminating 0 succeeded 2 failed 1 SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached")
	}, newJob(func(s *batchv1.JobSpec) { s.Completions, s.Parallelism = nil, ptr.To[int32](3) }))
}

func TestZeroCompletions(t *testing.T) {
	run(t, func(w *world) {
		w.expect("at once", "active 0 terminating 0 succeeded 0 failed 0 SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached")
	}, newJob(times(0, 1)))
}

// TestEvicted: a pod on a node that is not heard of any more counts as failed and
// is replaced; when the node is heard of again nothing is counted twice.
func TestEvicted(t *testing.T) {
	run(t, func(w *world) {
		p := w.first()
		w.bind(p)
		w.remove(p, false)
		w.expect("evicted", "active 0 terminating 1 succeeded 0 failed 1")
		w.settle(10 * time.Second)
		w.expect("replaced", "active 1 terminating 1 succeeded 0 failed 1")
		w.end(p.Name, corev1.PodSucceeded, 0)
		w.remove(p, true)
		w.settle(time.Minute)
		w.expect("confirmed", "active 1 terminating 0 succeeded 0 failed 1")
		w.succeed(w.first())
		w.expect("in the end", "active 0 terminating 0 succeeded 1 failed 1 SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached")
	}, newJob())
}

// TestEvictedSucceeds: a pod that was noted as failed when it was deleted, and that then succeeds
// before its finalizer is off, counts as failed only. Its index, if it has one, is done.
func TestEvictedSucceeds(t *testing.T) {
	const done = " SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached"
	for name, tc := range map[string]struct {
		edit  func(*batchv1.JobSpec)
		twice bool // noted as succeeded, too
		want  string
	}{
		"plain":   {func(*batchv1.JobSpec) {}, false, "active 1 terminating 0 succeeded 0 failed 1"},
		"twice":   {func(*batchv1.JobSpec) {}, true, "active 1 terminating 0 succeeded 0 failed 1"},
		"indexed": {numbered, false, "active 0 terminating 0 succeeded 1 failed 1 indexes 0" + done},
	} {
		job := newJob(tc.edit)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "ns", UID: "p-uid", Labels: job.Spec.Selector.MatchLabels, Finalizers: []string{batchv1.JobTrackingFinalizer},
			Annotations:     map[string]string{batchv1.JobCompletionIndexAnnotation: "0"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
		}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
		job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Failed: []types.UID{p.UID}}
		if tc.twice {
			job.Status.UncountedTerminatedPods.Succeeded = []types.UID{p.UID}
		}
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.settle(time.Minute)
				w.expect("counted", tc.want)
			}, job, p)
		})
	}
}

// TestReplacementPolicy: with policy Failed nothing is replaced before it ended.
func TestReplacementPolicy(t *testing.T) {
	run(t, func(w *world) {
		p := w.first()
		w.bind(p)
		w.remove(p, false)
		w.settle(time.Hour)
		w.expect("evicted", "active 0 terminating 1 succeeded 0 failed 0")
		w.fail(p)
		w.settle(10 * time.Second)
		w.expect("ended", "active 1 terminating 0 succeeded 0 failed 1")
	}, newJob(func(s *batchv1.JobSpec) { s.PodReplacementPolicy = ptr.To(batchv1.Failed) }))
}

// TestOwnership: a pod of the same labels is left alone if somebody controls it
// and adopted if nobody does.
func TestOwnership(t *testing.T) {
	match := map[string]string{batchv1.ControllerUidLabel: "job-uid"}
	theirs := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "theirs", Namespace: "ns", Labels: match, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Thing", Name: "t", UID: "t", Controller: ptr.To(true)},
	}}}
	stray := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stray", Namespace: "ns", Labels: match}}
	run(t, func(w *world) {
		w.expect("at first", "active 2 terminating 0 succeeded 0 failed 0")
		if w.creates() != 1 {
			w.Errorf("%d made beside the one adopted", w.creates())
		}
		p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, "stray", metav1.GetOptions{})
		if err != nil || !tracked(p) || metav1.GetControllerOf(p) == nil {
			w.Errorf("%v; %+v", err, p.ObjectMeta)
		}
		w.succeed(stray)
		w.succeed(theirs)
		w.expect("one has succeeded", "active 1 terminating 0 succeeded 1 failed 0")
		p, err = w.client.CoreV1().Pods("ns").Get(w.ctx, "theirs", metav1.GetOptions{})
		if err != nil || len(p.Finalizers) != 0 || metav1.GetControllerOf(p).UID != "t" {
			w.Errorf("%v; %+v", err, p.ObjectMeta)
		}
	}, newJob(times(2, 2)), theirs, stray)
}

// TestDeleted: the pods of a Job that is gone are not held by its finalizer, and
// one that is being deleted makes no more.
func TestDeleted(t *testing.T) {
	job := newJob(times(3, 3))
	job.Finalizers = []string{"example.com/held"}
	run(t, func(w *world) {
		pods := w.active()
		w.bind(pods[0])
		if err := w.client.BatchV1().Jobs("ns").Delete(w.ctx, "j", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		w.remove(pods[0], false)
		w.remove(pods[1], false)
		w.settle(time.Minute)
		if n := len(w.pods()); n != 2 || w.creates() != 3 {
			w.Errorf("%d pods, %d made", n, w.creates())
		}
		j := w.job()
		j.Finalizers = nil
		if _, err := w.client.BatchV1().Jobs("ns").Update(w.ctx, j, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		w.settle(0)
		if _, err := w.client.BatchV1().Jobs("ns").Get(w.ctx, "j", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			w.Fatalf("the Job: %v", err)
		}
		for _, p := range w.pods() {
			if tracked(p) {
				w.Errorf("%s is held by a Job that is gone", p.Name)
			}
		}
	}, job)
}

// TestManagedElsewhere: what another controller manages is left alone.
func TestManagedElsewhere(t *testing.T) {
	run(t, func(w *world) {
		if w.creates() != 0 || w.job().Status.StartTime != nil {
			w.Errorf("%d pods made; status %+v", w.creates(), w.job().Status)
		}
		if e := w.heard(); len(e) > 0 {
			w.Errorf("events %q", e)
		}
	}, newJob(func(s *batchv1.JobSpec) { s.ManagedBy = ptr.To("example.com/other") }))
}

// TestFinishedElsewhere: the pods of a Job that another controller manages keep their finalizer,
// which that controller takes off, also once the Job has finished.
func TestFinishedElsewhere(t *testing.T) {
	job := newJob(func(s *batchv1.JobSpec) { s.ManagedBy = ptr.To("example.com/other") })
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "ns", Labels: job.Spec.Selector.MatchLabels, Finalizers: []string{batchv1.JobTrackingFinalizer},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
	}}
	run(t, func(w *world) {
		for _, step := range []string{"at first", "ended"} {
			if step == "ended" {
				w.succeed(p)
			}
			if list := w.pods(); len(list) != 1 || !tracked(list[0]) {
				t.Errorf("%s: %v", step, list)
			}
		}
	}, job, p)
}

// TestDeadlineOfDeletedJob: a Job that was deleted while it was suspended, and goes on, has no
// deadline to be looked at again and again for: it ends with its finalizers.
func TestDeadlineOfDeletedJob(t *testing.T) {
	now := time.Now()
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: now}},
		Spec:       batchv1.JobSpec{ActiveDeadlineSeconds: ptr.To[int64](1)},
		Status: batchv1.JobStatus{
			StartTime:  &metav1.Time{Time: now.Add(-time.Hour)},
			Conditions: []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}},
		},
	}
	l := &look{job: j, now: now}
	if d := l.deadline(); d != 0 || l.overdue() {
		t.Errorf("looked at again after %v, overdue: %t", d, l.overdue())
	}
}
