package cronjob

// What the tests in fake time have in common: the controller, a CronJob and its Jobs.
// Fake time begins at midnight UTC, 2000-01-01, a Saturday.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// midnight is the minute at which fake time begins.
const midnight = 946684800 / 60

type world struct {
	*testing.T
	ctx    context.Context
	client *fake.Clientset
	events *record.FakeRecorder
	ctl    *Controller
	began  time.Time
	stop   func()
}

// run runs f with a CronJob c that makes a Job every ten minutes, unless edited.
func run(t *testing.T, f func(w *world), edits ...func(*batchv1.CronJob)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cj := &batchv1.CronJob{
			ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"},
			Spec: batchv1.CronJobSpec{
				Schedule: "*/10 * * * *", TimeZone: ptr.To("UTC"), ConcurrencyPolicy: batchv1.AllowConcurrent, Suspend: ptr.To(false),
				SuccessfulJobsHistoryLimit: ptr.To[int32](3), FailedJobsHistoryLimit: ptr.To[int32](1),
				JobTemplate: batchv1.JobTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}, Annotations: map[string]string{"note": "n"}},
					Spec:       batchv1.JobSpec{Completions: ptr.To[int32](2), BackoffLimit: ptr.To[int32](3)},
				},
			},
		}
		for _, e := range edits {
			e(cj)
		}
		client, _, err := apitest.New(cj)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, ctx: t.Context(), client: client, events: record.NewFakeRecorder(10000), began: time.Now()}
		w.start()
		w.at(0)
		f(w)
		w.stop()
	})
}

// start starts a controller that remembers nothing, as after a crash.
func (w *world) start() {
	w.Helper()
	ctl, stop := apitest.Start(w, w.client, func(f informers.SharedInformerFactory) (*Controller, error) {
		return New(loop.Deps{Client: w.client, Informers: f, Events: w.events}, Config{})
	})
	w.ctl = ctl
	w.stop = func() {
		w.Helper()
		if err := stop(); err != nil {
			w.Errorf("Run: %v", err)
		}
	}
}

// at lets time pass until minute m, and a little more for what is tried again.
func (w *world) at(m int) {
	w.Helper()
	apitest.Until(w, w.began, time.Duration(m)*time.Minute+10*time.Second)
}

// react has f answer requests, also while the controller runs.
func (w *world) react(verb, resource string, f clienttesting.ReactionFunc) {
	w.client.Lock() // which PrependReactor does not
	defer w.client.Unlock()
	w.client.PrependReactor(verb, resource, f)
}

// settle lets a little time pass.
func (w *world) settle() {
	<-time.After(time.Second)
	synctest.Wait()
}

func (w *world) get() *batchv1.CronJob {
	w.Helper()
	cj, err := w.client.BatchV1().CronJobs("ns").Get(w.ctx, "c", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return cj
}

func (w *world) change(edit func(*batchv1.CronJobSpec)) {
	w.Helper()
	cj := w.get()
	edit(&cj.Spec)
	if _, err := w.client.BatchV1().CronJobs("ns").Update(w.ctx, cj, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.settle()
}

// name is the name of the Job of minute m.
func name(m int) string { return fmt.Sprintf("c-%d", midnight+m) }

// said puts minutes for the names of Jobs: $10 for that of minute 10.
func said(s string) string {
	for m := range 2000 {
		s = strings.ReplaceAll(s, name(m), fmt.Sprintf("$%d", m))
	}
	return s
}

func (w *world) job(m int) *batchv1.Job {
	w.Helper()
	j, err := w.client.BatchV1().Jobs("ns").Get(w.ctx, name(m), metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return j
}

// end has a Job begin at its minute and end now.
func (w *world) end(m int, how batchv1.JobConditionType) {
	w.Helper()
	j := w.job(m)
	j.Status.StartTime = &metav1.Time{Time: w.began.Add(time.Duration(m) * time.Minute)}
	j.Status.Conditions = []batchv1.JobCondition{{Type: how, Status: corev1.ConditionTrue}}
	if how == batchv1.JobComplete {
		now := metav1.Now()
		j.Status.CompletionTime = &now
	}
	if _, err := w.client.BatchV1().Jobs("ns").UpdateStatus(w.ctx, j, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.settle()
}

// jobs wants these Jobs, and these of them active, such as "$10 $20, active $20".
func (w *world) jobs(want string) {
	w.Helper()
	list, err := w.client.BatchV1().Jobs("ns").List(w.ctx, metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	names, active := make([]string, 0, 8), make([]string, 0, 8)
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	for _, ref := range w.get().Status.Active {
		active = append(active, ref.Name)
	}
	slices.Sort(names)
	if got := said(strings.Join(names, " ") + ", active " + strings.Join(active, " ")); got != want {
		w.Errorf("at %v: %s; want %s", time.Since(w.began), got, want)
	}
}

// heard wants these events since the last call.
func (w *world) heard(want ...string) {
	w.Helper()
	got := apitest.Events(w.events)
	for i := range got {
		got[i] = said(got[i])
	}
	if !slices.Equal(got, want) {
		w.Errorf("at %v events %q, want %q", time.Since(w.began), got, want)
	}
}

// last wants the minutes of the last scheduled time and of the last success; -1 for none.
func (w *world) last(schedule, success int) {
	w.Helper()
	minute := func(t *metav1.Time) int {
		if t == nil {
			return -1
		}
		return int(t.Sub(w.began) / time.Minute)
	}
	s := w.get().Status
	if a, b := minute(s.LastScheduleTime), minute(s.LastSuccessfulTime); a != schedule || b != success {
		w.Errorf("last scheduled %d succeeded %d, want %d %d", a, b, schedule, success)
	}
}
