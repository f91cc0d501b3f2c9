package cronjob

// Tests of Jobs that others make and delete, and of writes that fail.

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// TestMissing: a Job that somebody deleted is not waited for.
func TestMissing(t *testing.T) {
	run(t, func(w *world) {
		w.at(10)
		if err := w.client.BatchV1().Jobs("ns").Delete(w.ctx, name(10), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.jobs(", active ")
		w.heard(made+"$10", "Normal MissingJob Active job went missing: $10")
		w.at(20)
		w.jobs("$20, active $20")
	}, policy(batchv1.ForbidConcurrent))
}

// TestByHand: a Job made by hand for the CronJob is told of and stands in nobody's way.
func TestByHand(t *testing.T) {
	run(t, func(w *world) {
		cj := w.get()
		_, err := w.client.BatchV1().Jobs("ns").Create(w.ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
			Name: name(3), Namespace: "ns", OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: "c", UID: cj.UID, Controller: ptr.To(true)}},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.heard("Warning UnexpectedJob Saw a job that the controller did not create or forgot: $3")
		w.jobs("$3, active ")
		w.at(5)
		w.end(3, batchv1.JobComplete)
		w.last(-1, 5)
		w.heard()
	}, policy(batchv1.ForbidConcurrent))
}

// TestForeign: finished Jobs of another namespace that name the CronJob's uid take no room in its
// history, and are no success of it.
func TestForeign(t *testing.T) {
	run(t, func(w *world) {
		w.at(10)
		w.end(10, batchv1.JobComplete)
		w.last(10, 10)
		owner := metav1.OwnerReference{APIVersion: "batch/v1", Kind: "CronJob", Name: "c", UID: w.get().UID, Controller: ptr.To(true)}
		end := metav1.NewTime(w.began.Add(15 * time.Minute))
		for _, name := range []string{"x", "y", "z"} {
			_, err := w.client.BatchV1().Jobs("mallory").Create(w.ctx, &batchv1.Job{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "mallory", OwnerReferences: []metav1.OwnerReference{owner}},
				Status: batchv1.JobStatus{
					StartTime: &end, CompletionTime: &end, Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		w.at(20)
		w.jobs("$10 $20, active $20")
		w.last(20, 10)
	})
}

// TestStatusLost: a Job whose status was not written is found by its name.
func TestStatusLost(t *testing.T) {
	run(t, func(w *world) {
		var mended atomic.Bool
		w.react("update", "cronjobs", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !mended.Load(), nil, errors.New("no")
		})
		w.at(10)
		w.jobs("$10, active ")
		w.stop()
		mended.Store(true)
		w.start()
		w.settle()
		w.jobs("$10, active $10")
		w.last(10, -1)
	})
}

// TestTimeLost: a Job that runs is not named twice when its time was lost.
func TestTimeLost(t *testing.T) {
	run(t, func(w *world) {
		w.at(10)
		cj := w.get()
		cj.Status.LastScheduleTime = nil
		if _, err := w.client.BatchV1().CronJobs("ns").UpdateStatus(w.ctx, cj, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.jobs("$10, active $10")
		w.last(10, -1)
	})
}

// TestTaken: a Job of somebody else that has the name stays as it is.
func TestTaken(t *testing.T) {
	run(t, func(w *world) {
		if _, err := w.client.BatchV1().Jobs("ns").Create(w.ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name(10), Namespace: "ns"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.at(10)
		w.jobs("$10, active ")
		w.heard(`Warning FailedCreate Error creating job: jobs.batch "$10" already exists`)
		w.at(20)
		w.jobs("$10 $20, active $20")
	})
}

// TestCreateFails: a Job that cannot be made is tried again, but not in a namespace
// that goes.
func TestCreateFails(t *testing.T) {
	for _, tc := range []struct {
		name  string
		err   error
		tried bool // whether it is, again
		event string
	}{
		{"any", errors.New("no"), true, "Warning FailedCreate Error creating job: no"},
		{"namespace", &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden, Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}},
		}}}, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(w *world) {
				w.at(9)
				var tries atomic.Int32
				var mended atomic.Bool
				w.react("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
					tries.Add(1)
					return !mended.Load(), nil, tc.err
				})
				w.at(10)
				if n := tries.Load(); (n > 1) != tc.tried || n == 0 {
					t.Errorf("%d tries", n)
				}
				if tc.event == "" {
					w.heard()
				} else if e := <-w.events.Events; e != tc.event {
					t.Errorf("heard %s", e)
				}
				w.last(-1, -1)
				mended.Store(true)
				w.at(12)
				if tc.tried {
					w.jobs("$10, active $10")
				}
			})
		})
	}
}

// TestBehind: with a cache that shows an older CronJob than there is, nothing is done.
func TestBehind(t *testing.T) {
	run(t, func(w *world) {
		w.at(9)
		var same atomic.Bool
		w.react("get", "cronjobs", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !same.Load(), &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns", UID: "other"}}, nil
		})
		w.at(10)
		same.Store(true)
		w.jobs(", active ")
		w.heard()
		w.at(11)
		w.jobs("$10, active $10")
	})
}

// TestDeleted: a CronJob that goes makes no more Jobs, but its status is kept.
func TestDeleted(t *testing.T) {
	run(t, func(w *world) {
		w.at(10)
		if err := w.client.BatchV1().CronJobs("ns").Delete(w.ctx, "c", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.end(10, batchv1.JobComplete)
		w.at(20)
		w.jobs("$10, active ")
		cj := w.get()
		cj.Finalizers = nil
		if _, err := w.client.BatchV1().CronJobs("ns").Update(w.ctx, cj, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.at(30)
	}, func(cj *batchv1.CronJob) { cj.Finalizers = []string{"x/y"} })
}

// TestClockSetBack: a time that was written by a clock that was ahead does not keep Jobs from being
// made until then.
func TestClockSetBack(t *testing.T) {
	run(t, func(w *world) {
		w.at(30)
		for _, m := range []int{10, 20, 30} {
			w.job(m)
		}
	}, func(cj *batchv1.CronJob) {
		cj.Status.LastScheduleTime = &metav1.Time{Time: time.Now().Add(5 * time.Hour)}
	})
}
