package statefulset

// Tests of the status.

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestForeground: a set that is deleted in the foreground says how many pods it still has, makes
// none and remembers no template.
func TestForeground(t *testing.T) {
	run(t, func(w *world) {
		w.up(3)
		w.status("3 ready 3 available 3 one 3 one 3")
		foreground := metav1.DeletePropagationForeground
		w.Must(w.Client.AppsV1().StatefulSets("ns").Delete(w.Context(), "s", metav1.DeleteOptions{PropagationPolicy: &foreground}))
		w.settle(0)
		for _, p := range w.pods()[1:] {
			w.Must(w.Client.CoreV1().Pods("ns").Delete(w.Context(), p.Name, metav1.DeleteOptions{}))
		}
		w.gone()
		w.status("1 ready 1 available 1 one 1 one 1")
		revisions := w.Client.AppsV1().ControllerRevisions("ns")
		w.Must(revisions.Delete(w.Context(), w.set().Status.UpdateRevision, metav1.DeleteOptions{})) // as the garbage collector does
		w.settle(time.Minute)
		w.Must(w.Client.CoreV1().Pods("ns").Delete(w.Context(), "s-0", metav1.DeleteOptions{}))
		w.gone()
		list, err := revisions.List(w.Context(), metav1.ListOptions{})
		w.Must(err)
		if s := w.set(); len(w.pods())+len(list.Items) > 0 || s.Status.Replicas != 0 || s.Status.UpdateRevision == "" || s.DeletionTimestamp == nil {
			t.Errorf("%d pods and %d revisions; %+v", len(w.pods()), len(list.Items), s.Status)
		}
	}, set())
}
