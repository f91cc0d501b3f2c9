// What becomes of an object that is deleted with a word on its dependents.

package apiserver_test

import (
	"net/http"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// TestNoNewFinalizer: an object that is being deleted gets no more finalizers.
func TestNoNewFinalizer(t *testing.T) {
	ctx, cms := t.Context(), shared.client.CoreV1().ConfigMaps(namespace(t))
	must(cms.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}, metav1.CreateOptions{}))(t)
	if err := cms.Delete(ctx, "held", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cm := must(cms.Get(ctx, "held", metav1.GetOptions{}))(t)
	cm.Finalizers = append(cm.Finalizers, "example.com/more")
	if _, err := cms.Update(ctx, cm, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a finalizer more: %v", err)
	}
	cm.Finalizers = nil
	must(cms.Update(ctx, cm, metav1.UpdateOptions{}))(t)
}

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
	checkOptions(t, s)
	checkForeground(t, s)
}

// checkOptions deletes by options that contradict themselves, and by the old field alone.
func checkOptions(t *testing.T, s *instance) {
	t.Helper()
	ctx, cms := t.Context(), s.client.CoreV1().ConfigMaps("default")
	must(cms.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "orphans"}}, metav1.CreateOptions{}))(t)
	for what, o := range map[string]metav1.DeleteOptions{
		"an unknown policy":           {PropagationPolicy: ptr.To(metav1.DeletionPropagation("Sideways"))},
		"a policy and the old field ": {PropagationPolicy: ptr.To(metav1.DeletePropagationBackground), OrphanDependents: ptr.To(true)},
	} {
		if err := cms.Delete(ctx, "orphans", o); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := cms.Delete(ctx, "orphans", metav1.DeleteOptions{OrphanDependents: ptr.To(true)}); err != nil { //nolint:staticcheck // old clients send it
		t.Fatal(err)
	}
	if cm := must(cms.Get(ctx, "orphans", metav1.GetOptions{}))(t); !slices.Equal(cm.Finalizers, []string{metav1.FinalizerOrphanDependents}) {
		t.Errorf("by the old field: %q", cm.Finalizers)
	}
}

// checkForeground: a foreground deletion takes the place of an orphaning one, leaves other
// finalizers, and counts as a change of what is wanted.
func checkForeground(t *testing.T, s *instance) {
	t.Helper()
	ctx, match := t.Context(), map[string]string{"app": "x"}
	sets := s.client.AppsV1().ReplicaSets("default")
	was := must(sets.Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "x", Finalizers: []string{"example.com/x", metav1.FinalizerOrphanDependents}},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: match},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: match}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		},
	}, metav1.CreateOptions{}))(t)
	var (
		code     int
		answered appsv1.ReplicaSet
	)
	err := s.client.AppsV1().RESTClient().Delete().Namespace("default").Resource("replicasets").Name("x").
		Body(&metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}).Do(ctx).StatusCode(&code).Into(&answered)
	if err != nil || code != http.StatusOK && code != http.StatusAccepted {
		t.Fatalf("status %d, %v", code, err)
	}
	for what, rs := range map[string]*appsv1.ReplicaSet{"answered": &answered, "read": must(sets.Get(ctx, "x", metav1.GetOptions{}))(t)} {
		slices.Sort(rs.Finalizers)
		if rs.DeletionTimestamp == nil || rs.Generation != was.Generation+1 || !slices.Equal(rs.Finalizers, []string{"example.com/x", metav1.FinalizerDeleteDependents}) {
			t.Errorf("%s: finalizers %q, generation %d after %d, deleted at %v", what, rs.Finalizers, rs.Generation, was.Generation, rs.DeletionTimestamp)
		}
	}
}
