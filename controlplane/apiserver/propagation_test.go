// What becomes of an object that is deleted with a word on its dependents.

package apiserver_test

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// TestPropagationWithoutCollector deletes in every way while there is no garbage
// collector: nothing may wait for one.
func TestPropagationWithoutCollector(t *testing.T) {
	ctx := t.Context()
	cms := shared.client.CoreV1().ConfigMaps("default")
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan, metav1.DeletePropagationBackground} {
		t.Run(string(policy), func(t *testing.T) {
			cm, err := cms.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "gone-"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := cms.Delete(ctx, cm.Name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			if left, err := cms.Get(ctx, cm.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("still there with finalizers %q (error %v)", left.Finalizers, err)
			}
		})
	}
	// A Job's dependents are orphaned unless the delete says otherwise.
	jobs := shared.client.BatchV1().Jobs("default")
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}
	job.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	if _, err := jobs.Create(ctx, job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := jobs.Delete(ctx, "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if left, err := jobs.Get(ctx, "gone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("job is still there with finalizers %q (error %v)", left.Finalizers, err)
	}
}

// TestPropagationWithCollector sees the finalizers that a garbage collector goes
// by.
func TestPropagationWithCollector(t *testing.T) {
	ctx := t.Context()
	s, err := startWith(t.TempDir(), func(c *apiserver.Config) { c.EnableGarbageCollector = true })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	cms := s.client.CoreV1().ConfigMaps("default")
	for policy, finalizer := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationForeground: metav1.FinalizerDeleteDependents,
		metav1.DeletePropagationOrphan:     metav1.FinalizerOrphanDependents,
	} {
		cm, err := cms.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "kept-"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := cms.Delete(ctx, cm.Name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
		left, err := cms.Get(ctx, cm.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s: %v", policy, err)
		}
		if left.DeletionTimestamp == nil || len(left.Finalizers) != 1 || left.Finalizers[0] != finalizer {
			t.Errorf("%s: finalizers %q, deleted at %v", policy, left.Finalizers, left.DeletionTimestamp)
		}
	}
}
