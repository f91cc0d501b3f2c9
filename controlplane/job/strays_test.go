package job

// Tests of pods with the finalizer that no Job counts.

import (
	"bytes"
	"errors"
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

// held is a pod with the labels of a Job's pods and the finalizer.
func held(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "ns", Labels: newJob().Spec.Selector.MatchLabels, Finalizers: []string{batchv1.JobTrackingFinalizer},
	}}
	for _, e := range edits {
		e(p)
	}
	return p
}

// of has a pod be controlled by something.
func of(version, kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name, UID: "other", Controller: ptr.To(true)}}
	}
}

// TestStrays: a pod is freed if its Job is gone or nobody controls it and no Job will adopt it, and
// not if something else than a Job controls it.
func TestStrays(t *testing.T) {
	over := newJob()
	over.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	going := newJob()
	going.Finalizers, going.DeletionTimestamp = []string{metav1.FinalizerOrphanDependents}, &metav1.Time{Time: time.Unix(1, 0)}
	elsewhere := newJob(func(s *batchv1.JobSpec) { s.ManagedBy = ptr.To("example.com/other") })
	dying := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		objs []runtime.Object
		kept bool
	}{
		"of no Job":                  {held("p", of("batch/v1", "Job", "gone")), nil, false},
		"of another Job of its name": {held("p", of("batch/v1", "Job", "j")), []runtime.Object{newJob()}, false},
		"of something else":          {held("p", of("example.com/v1", "Job", "j")), []runtime.Object{newJob()}, true},
		"of a ReplicaSet":            {held("p", of("apps/v1", "ReplicaSet", "r")), nil, true},
		"adopted":                    {held("p"), []runtime.Object{newJob()}, true},
		"of nobody":                  {held("p", func(p *corev1.Pod) { p.Labels = nil }), []runtime.Object{newJob()}, false},
		"beside a finished Job":      {held("p"), []runtime.Object{over}, false},
		"beside a Job being deleted": {held("p"), []runtime.Object{going}, false},
		"beside another's Job":       {held("p"), []runtime.Object{elsewhere}, false},
		"being deleted":              {held("p", dying), []runtime.Object{newJob()}, false},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				kept := false
				for _, p := range w.pods() {
					kept = kept || p.Name == "p" && tracked(p)
				}
				if kept != tc.kept {
					t.Errorf("has the finalizer: %t", kept)
				}
			}, append(tc.objs, tc.pod)...)
		})
	}
}

// TestOrphanedFirst: a pod that a Job might have adopted is freed once the Job is gone or finished.
func TestOrphanedFirst(t *testing.T) {
	for name, end := range map[string]func(w *world) error{
		"gone": func(w *world) error { return w.client.BatchV1().Jobs("ns").Delete(w.ctx, "j", metav1.DeleteOptions{}) },
		"finished": func(w *world) error {
			j := w.job()
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
			_, err := w.client.BatchV1().Jobs("ns").UpdateStatus(w.ctx, j, metav1.UpdateOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
					patch, _ := a.(clienttesting.PatchAction)
					if !bytes.Contains(patch.GetPatch(), []byte("ownerReferences")) {
						return false, nil, nil
					}
					return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), patch.GetName(), errors.New("not to be adopted"))
				})
				if _, err := w.client.CoreV1().Pods("ns").Create(w.ctx, held("p"), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				w.settle(0)
				isHeld := func() bool {
					p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, "p", metav1.GetOptions{})
					return err == nil && tracked(p)
				}
				if !isHeld() {
					t.Error("freed while the Job may adopt it")
				}
				if err := end(w); err != nil {
					t.Fatal(err)
				}
				w.settle(0)
				if isHeld() {
					t.Error("still held")
				}
			}, newJob(suspend(true)))
		})
	}
}
