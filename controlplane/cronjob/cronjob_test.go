package cronjob

// Tests of CronJobs in fake time.

import (
	"errors"
	"maps"
	"sync/atomic"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

func spec(edit func(*batchv1.CronJobSpec)) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { edit(&cj.Spec) }
}

func policy(p batchv1.ConcurrencyPolicy) func(*batchv1.CronJob) {
	return spec(func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = p })
}

const (
	made      = "Normal SuccessfulCreate Created job "
	completed = "Normal SawCompletedJob Saw completed job: "
	deleted   = "Normal SuccessfulDelete Deleted job "
)

// TestMake: each scheduled time has its Job, which is made from the template.
func TestMake(t *testing.T) {
	run(t, func(w *world) {
		w.at(9)
		w.jobs(", active ")
		w.last(-1, -1)
		w.at(10)
		w.jobs("$10, active $10")
		w.last(10, -1)
		w.heard(made + "$10")
		j, cj := w.job(10), w.get()
		ref := metav1.GetControllerOf(j)
		if ref == nil || ref.Kind != "CronJob" || ref.APIVersion != "batch/v1" || ref.Name != "c" || ref.UID != cj.UID || !ptr.Deref(ref.BlockOwnerDeletion, false) {
			t.Errorf("controller %+v", ref)
		}
		if !maps.Equal(j.Labels, map[string]string{"app": "a"}) || !maps.Equal(j.Annotations, map[string]string{"note": "n", batchv1.CronJobScheduledTimestampAnnotation: "2000-01-01T00:10:00Z"}) {
			t.Errorf("labels %v annotations %v", j.Labels, j.Annotations)
		}
		if *j.Spec.Completions != 2 || *j.Spec.BackoffLimit != 3 || j.Spec.Selector != nil {
			t.Errorf("spec %+v", j.Spec)
		}
		if a := cj.Status.Active[0]; a.Kind != "Job" || a.APIVersion != "batch/v1" || a.Namespace != "ns" || a.UID != j.UID {
			t.Errorf("active %+v", a)
		}
		w.end(10, batchv1.JobComplete)
		w.jobs("$10, active ")
		w.last(10, 10)
		w.heard(completed + "$10, condition: Complete")
		w.at(20)
		w.end(20, batchv1.JobFailed)
		w.last(20, 10)
		w.heard(made+"$20", completed+"$20, condition: Failed")
	}, func(cj *batchv1.CronJob) {
		cj.Spec.JobTemplate.Spec.Selector = &metav1.LabelSelector{} // of a CronJob that an older server stored
	})
}

// TestZone: a schedule is read in its zone, and the Job says when it was due there.
func TestZone(t *testing.T) {
	run(t, func(w *world) {
		w.at(14)
		w.jobs(", active ")
		w.at(15)
		w.jobs("$15, active $15")
		if got := w.job(15).Annotations[batchv1.CronJobScheduledTimestampAnnotation]; got != "2000-01-01T06:00:00+05:45" {
			t.Errorf("due %s", got)
		}
	}, spec(func(s *batchv1.CronJobSpec) { s.Schedule, s.TimeZone = "0 6 * * *", ptr.To("Asia/Kathmandu") }))
}

func TestPolicies(t *testing.T) {
	run(t, func(w *world) {
		w.at(20)
		w.jobs("$10 $20, active $10 $20")
		w.heard(made+"$10", made+"$20")
	}, policy(batchv1.AllowConcurrent))
	run(t, func(w *world) {
		w.at(20)
		w.jobs("$10, active $10")
		w.last(10, -1)
		w.heard(made+"$10", "Normal JobAlreadyActive Not starting job because prior execution is running and concurrency policy is Forbid")
		w.at(24)
		w.end(10, batchv1.JobComplete) // what was held up is made up for
		w.jobs("$10 $20, active $20")
		w.heard(completed+"$10, condition: Complete", made+"$20")
	}, policy(batchv1.ForbidConcurrent))
	run(t, func(w *world) {
		w.at(20)
		w.jobs("$20, active $20")
		w.heard(made+"$10", deleted+"$10", made+"$20")
	}, policy(batchv1.ReplaceConcurrent))
}

// TestMissedIsToldOnce: that a time has been missed is told once, however often the CronJob is
// looked at afterwards, and not if its Job was held up and that was told.
func TestMissedIsToldOnce(t *testing.T) {
	deadline := spec(func(s *batchv1.CronJobSpec) { s.StartingDeadlineSeconds = ptr.To[int64](60) })
	t.Run("held up", func(t *testing.T) {
		run(t, func(w *world) {
			w.at(20)
			w.heard(made+"$10", "Normal JobAlreadyActive Not starting job because prior execution is running and concurrency policy is Forbid")
			w.at(24)
			w.end(10, batchv1.JobComplete)
			w.jobs("$10, active ")
			w.heard(completed + "$10, condition: Complete")
		}, policy(batchv1.ForbidConcurrent), deadline)
	})
	t.Run("down", func(t *testing.T) {
		run(t, func(w *world) {
			w.at(10)
			w.heard(made + "$10")
			w.stop()
			w.at(24)
			w.start()
			w.settle()
			const missed = "Warning MissSchedule Missed scheduled time to start a job: Sat, 01 Jan 2000 "
			w.heard(missed + "00:20:00 +0000")
			w.end(10, batchv1.JobComplete)
			w.change(func(s *batchv1.CronJobSpec) { s.SuccessfulJobsHistoryLimit = ptr.To[int32](5) })
			w.heard(completed + "$10, condition: Complete")
			w.change(func(s *batchv1.CronJobSpec) { s.Suspend = ptr.To(true) })
			w.at(34)
			w.change(func(s *batchv1.CronJobSpec) { s.Suspend = ptr.To(false) })
			w.heard(missed + "00:30:00 +0000") // another one
			if err := w.client.BatchV1().CronJobs("ns").Delete(w.ctx, "c", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			w.settle()
			if n := len(w.ctl.told); n != 0 {
				t.Errorf("%d times remembered", n)
			}
		}, deadline)
	})
}

// TestReplaceFails: while the old Job cannot be deleted there is no new one.
func TestReplaceFails(t *testing.T) {
	run(t, func(w *world) {
		w.at(19)
		var mended atomic.Bool
		w.react("delete", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !mended.Load(), nil, errors.New("no")
		})
		w.at(20)
		w.jobs("$10, active $10")
		if e := <-w.events.Events; said(e) != made+"$10" {
			t.Errorf("first heard %s", e)
		}
		if e := <-w.events.Events; e != "Warning FailedDelete Deleted job: no" {
			t.Errorf("then heard %s", e)
		}
		mended.Store(true)
		w.at(22)
		w.jobs("$20, active $20")
	}, policy(batchv1.ReplaceConcurrent))
}

func TestSuspend(t *testing.T) {
	run(t, func(w *world) {
		w.at(10)
		w.change(func(s *batchv1.CronJobSpec) { s.Suspend = ptr.To(true) })
		w.end(10, batchv1.JobComplete) // what runs goes on, and is counted
		w.at(45)
		w.jobs("$10, active ")
		w.last(10, 10)
		w.change(func(s *batchv1.CronJobSpec) { s.Suspend = ptr.To(false) })
		w.jobs("$10 $40, active $40") // of several times missed, the last
	})
}

// TestDown: what was missed while no controller ran is made up for once, if the
// deadline allows it.
func TestDown(t *testing.T) {
	const many = "Warning TooManyMissedTimes too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
	deadline := func(n int64) func(*batchv1.CronJob) {
		return spec(func(s *batchv1.CronJobSpec) { s.StartingDeadlineSeconds = &n })
	}
	for _, tc := range []struct {
		name     string
		until    int
		deadline func(*batchv1.CronJob)
		want     []string
	}{
		{"few", 1009, spec(func(*batchv1.CronJobSpec) {}), []string{made + "$1000"}},
		{"many", 1019, spec(func(*batchv1.CronJobSpec) {}), []string{many, made + "$1010"}},
		{"many, but not within the deadline", 1019, deadline(900), []string{made + "$1010"}},
		{"in the last second", 1019, deadline(550), []string{made + "$1010"}},
		{"too late", 1019, deadline(549), []string{"Warning MissSchedule Missed scheduled time to start a job: Sat, 01 Jan 2000 16:50:00 +0000"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(w *world) {
				w.stop()
				w.at(tc.until)
				w.start()
				w.settle()
				w.heard(tc.want...)
				w.at(1020)
				w.job(1020)
			}, tc.deadline)
		})
	}
}

// TestHistory: the oldest go, of each kind as many as are too many.
func TestHistory(t *testing.T) {
	run(t, func(w *world) {
		for m := 10; m <= 50; m += 10 {
			w.at(m)
			w.end(m, map[bool]batchv1.JobConditionType{true: batchv1.JobFailed, false: batchv1.JobComplete}[m == 20 || m == 40])
		}
		w.jobs("$30 $40 $50, active ")
		w.last(50, 50)
		w.change(func(s *batchv1.CronJobSpec) {
			s.SuccessfulJobsHistoryLimit, s.FailedJobsHistoryLimit = ptr.To[int32](0), nil
		})
		w.jobs("$40, active ")
		for _, a := range w.client.Actions() {
			if d, ok := a.(clienttesting.DeleteActionImpl); ok && *d.DeleteOptions.PropagationPolicy != metav1.DeletePropagationBackground {
				t.Errorf("%s: %v", d.Name, *d.DeleteOptions.PropagationPolicy)
			}
		}
	}, spec(func(s *batchv1.CronJobSpec) { s.SuccessfulJobsHistoryLimit = ptr.To[int32](2) }))
}

// TestUnusable: what cannot be read makes no Jobs and is told.
func TestUnusable(t *testing.T) {
	for _, tc := range []struct{ name, schedule, zone, want string }{
		{"zone", "* * * * *", "Moon/Sea", `Warning UnknownTimeZone invalid timeZone: "Moon/Sea": unknown time zone Moon/Sea`},
		{"schedule", "* * *", "UTC", `Warning UnparseableSchedule unparseable schedule: "* * *" : expected exactly 5 fields, found 3: [* * *]`},
		{"never", "59 23 31 2 *", "UTC", "Warning InvalidSchedule invalid schedule: 59 23 31 2 * : it names no time in the next five years"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(w *world) {
				w.at(30)
				w.heard(tc.want)
				w.jobs(", active ")
				w.change(func(s *batchv1.CronJobSpec) { s.Schedule, s.TimeZone = "*/10 * * * *", nil })
				w.at(40)
				w.job(40)
			}, spec(func(s *batchv1.CronJobSpec) { s.Schedule, s.TimeZone = tc.schedule, &tc.zone }))
		})
	}
	run(t, func(w *world) {
		w.heard(`Warning UnsupportedSchedule CRON_TZ or TZ used in schedule "TZ=UTC" is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details`,
			`Warning UnparseableSchedule unparseable schedule: "TZ=UTC" : nothing follows the time zone`)
	}, spec(func(s *batchv1.CronJobSpec) { s.Schedule = "TZ=UTC" }))
}

// TestReschedule: a new schedule counts from when it was given.
func TestReschedule(t *testing.T) {
	run(t, func(w *world) {
		w.at(18)
		w.change(func(s *batchv1.CronJobSpec) { s.Schedule = "*/4 * * * *" }) // minutes 12 and 16 are gone
		w.end(10, batchv1.JobComplete)
		w.at(19)
		w.jobs("$10, active ")
		w.at(20)
		w.jobs("$10 $20, active $20")
		w.change(func(s *batchv1.CronJobSpec) { s.Schedule = "*/15 * * * *" })
		w.at(29)
		w.jobs("$10 $20, active $20")
		w.at(30)
		w.jobs("$10 $20 $30, active $20 $30")
		if n := len(w.ctl.changed); n != 0 {
			t.Errorf("%d changes remembered", n)
		}
	})
}
