package ttlafterfinished

// Tests of when Jobs go, in fake time.

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestExpiry: a Job goes when its time is up, not a second earlier, and in the
// foreground.
func TestExpiry(t *testing.T) {
	const stays = -1
	for _, tc := range []struct {
		name      string
		ttl       *int32
		condition batchv1.JobConditionType
		status    corev1.ConditionStatus
		prolonged int32         // to this many seconds, unseen by the cache
		after     time.Duration // stays: not within a day
	}{
		{"complete", ptr.To[int32](60), batchv1.JobComplete, "True", 0, time.Minute},
		{"failed", ptr.To[int32](60), batchv1.JobFailed, "True", 0, time.Minute},
		{"at once", ptr.To[int32](0), batchv1.JobComplete, "True", 0, 0},
		{"no limit", nil, batchv1.JobComplete, "True", 0, stays},
		{"goes on", ptr.To[int32](60), batchv1.JobSuspended, "True", 0, stays},
		{"not complete", ptr.To[int32](60), batchv1.JobComplete, "False", 0, stays},
		{"prolonged in the last moment", ptr.To[int32](60), batchv1.JobComplete, "True", 90, 90 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				job := &batchv1.Job{
					ObjectMeta: metav1.ObjectMeta{Name: "j", Namespace: "ns"}, Spec: batchv1.JobSpec{TTLSecondsAfterFinished: tc.ttl},
					Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: tc.condition, Status: tc.status, LastTransitionTime: metav1.Now()}}},
				}
				client, server, err := apitest.New(job)
				if err != nil {
					t.Fatal(err)
				}
				if tc.prolonged > 0 {
					client.PrependReactor("get", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
						obj, err := server.Get(batchv1.SchemeGroupVersion.WithResource("jobs"), "ns", "j")
						if j, ok := obj.(*batchv1.Job); ok {
							j.Spec.TTLSecondsAfterFinished = &tc.prolonged
						}
						return true, obj, err
					})
				}
				_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
					return New(loop.Deps{Client: client, Informers: f}, Config{})
				})
				there := func() bool {
					t.Helper()
					j, err := server.Get(batchv1.SchemeGroupVersion.WithResource("jobs"), "ns", "j")
					if err != nil {
						t.Fatal(err)
					}
					m, ok := j.(*batchv1.Job)
					if ok && m.DeletionTimestamp != nil && (len(m.Finalizers) != 1 || m.Finalizers[0] != metav1.FinalizerDeleteDependents) {
						t.Errorf("held by %v", m.Finalizers)
					}
					return ok && m.DeletionTimestamp == nil
				}
				settle := func(d time.Duration) {
					<-time.After(d)
					synctest.Wait()
				}
				if tc.after == stays {
					settle(24 * time.Hour)
					if !there() {
						t.Error("gone")
					}
				} else {
					if tc.after > 0 {
						settle(tc.after - time.Second)
						if !there() {
							t.Fatal("gone too early")
						}
						settle(time.Second)
					}
					settle(100 * time.Millisecond)
					if there() {
						t.Error("still there")
					}
				}
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		})
	}
}
