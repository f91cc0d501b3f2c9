package job

// The world that the tests of this package run in.

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a controller, what it talks to, and what it said.
type world struct {
	*testing.T
	ctx    context.Context
	client *fake.Clientset
	server *apitest.Server
	events *record.FakeRecorder
	began  time.Time
	stop   func() // ends the controller that runs
}

// newJob returns a Job as the API server completes it.
func newJob(edits ...func(*batchv1.JobSpec)) *batchv1.Job {
	match := map[string]string{batchv1.ControllerUidLabel: "job-uid"}
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "j", Namespace: "ns", UID: "job-uid"},
		Spec: batchv1.JobSpec{
			Parallelism: ptr.To[int32](1), Completions: ptr.To[int32](1), BackoffLimit: ptr.To[int32](6),
			Selector: &metav1.LabelSelector{MatchLabels: match},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: match},
				Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
	for _, e := range edits {
		e(&j.Spec)
	}
	return j
}

func times(completions, parallel int32) func(*batchv1.JobSpec) {
	return func(s *batchv1.JobSpec) { s.Completions, s.Parallelism = &completions, &parallel }
}

func limit(n int32) func(*batchv1.JobSpec) { return func(s *batchv1.JobSpec) { s.BackoffLimit = &n } }

func suspend(on bool) func(*batchv1.JobSpec) {
	return func(s *batchv1.JobSpec) { s.Suspend = &on }
}

func numbered(s *batchv1.JobSpec) { s.CompletionMode = ptr.To(batchv1.IndexedCompletion) }

func run(t *testing.T, f func(w *world), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, server, err := apitest.New(objs...)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, ctx: t.Context(), client: client, server: server, events: record.NewFakeRecorder(10000), began: time.Now()}
		w.start()
		w.settle(0)
		f(w)
		w.stop()
	})
}

// start starts a controller that remembers nothing, as after a crash.
func (w *world) start() {
	w.Helper()
	_, stop := apitest.Start(w, w.client, func(f informers.SharedInformerFactory) (*Controller, error) {
		return New(loop.Deps{Client: w.client, Informers: f, Events: w.events}, Config{})
	})
	w.stop = func() {
		w.Helper()
		if err := stop(); err != nil {
			w.Errorf("Run: %v", err)
		}
	}
}

// settle lets d pass and what it sets off come to an end. Nothing the controller
// does takes time, but it tries again a little later.
func (w *world) settle(d time.Duration) {
	w.Helper()
	<-time.After(d + 100*time.Millisecond)
	synctest.Wait()
}

func (w *world) job() *batchv1.Job {
	w.Helper()
	j, err := w.client.BatchV1().Jobs("ns").Get(w.ctx, "j", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return j
}

func (w *world) change(edit func(*batchv1.JobSpec)) {
	w.Helper()
	j := w.job()
	edit(&j.Spec)
	if _, err := w.client.BatchV1().Jobs("ns").Update(w.ctx, j, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.settle(0)
}

func (w *world) pods() []*corev1.Pod {
	w.Helper()
	return apitest.Pods(w, w.client, "ns")
}

func (w *world) active() []*corev1.Pod {
	w.Helper()
	return children.Filter(w.pods(), children.Active)
}

// end makes a pod end, as its node would say.
func (w *world) end(name string, phase corev1.PodPhase, code int32, conditions ...corev1.PodCondition) {
	w.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		p.Status = corev1.PodStatus{Phase: phase, Conditions: conditions, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()}}},
		}}
		_, err = w.client.CoreV1().Pods("ns").UpdateStatus(w.ctx, p, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) succeed(p *corev1.Pod) {
	w.Helper()
	w.end(p.Name, corev1.PodSucceeded, 0)
	w.settle(0)
}
func (w *world) fail(p *corev1.Pod) { w.Helper(); w.end(p.Name, corev1.PodFailed, 1); w.settle(0) }

// bind puts a pod on a node, from where it takes its time to go.
func (w *world) bind(p *corev1.Pod) {
	w.Helper()
	p.Spec.NodeName = "n"
	if _, err := w.client.CoreV1().Pods("ns").Update(w.ctx, p, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.settle(0)
}

// remove deletes a pod; now means without waiting for its node.
func (w *world) remove(p *corev1.Pod, now bool) {
	w.Helper()
	o := metav1.DeleteOptions{}
	if now {
		o.GracePeriodSeconds = ptr.To[int64](0)
	}
	if err := w.client.CoreV1().Pods("ns").Delete(w.ctx, p.Name, o); err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	w.settle(0)
}

// status is what counts of the status, on one line.
func (w *world) status() string {
	w.Helper()
	s := w.job().Status
	out := fmt.Sprintf("active %d terminating %d succeeded %d failed %d", s.Active, ptr.Deref(s.Terminating, 0), s.Succeeded, s.Failed)
	if u := s.UncountedTerminatedPods; u != nil && len(u.Succeeded)+len(u.Failed) > 0 {
		out += fmt.Sprintf(" uncounted %d", len(u.Succeeded)+len(u.Failed))
	}
	if s.CompletedIndexes != "" {
		out += " indexes " + s.CompletedIndexes
	}
	for _, c := range s.Conditions {
		if c.Status == corev1.ConditionTrue {
			out += fmt.Sprintf(" %s/%s", c.Type, c.Reason)
		}
	}
	return out
}

func (w *world) expect(step, want string) {
	w.Helper()
	if got := w.status(); got != want {
		w.Errorf("%s: %s\nwant %s", step, got, want)
	}
}

func (w *world) creates() int {
	n := 0
	for _, a := range w.client.Actions() {
		if a.Matches("create", "pods") {
			n++
		}
	}
	return n
}

// heard returns events, without those about single pods.
func (w *world) heard() []string {
	return slices.DeleteFunc(apitest.Events(w.events), func(e string) bool { return strings.Contains(e, " Successful") })
}

func (w *world) first() *corev1.Pod {
	w.Helper()
	active := w.active()
	if len(active) == 0 {
		w.Fatalf("no active pod; %s", w.status())
	}
	return active[0]
}
