package statefulset

// Tests of which pods are an ordinal's, and of the labels that say so.

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/apitest"
)

// TestAdoption: only a pod of such a name is an ordinal's.
func TestAdoption(t *testing.T) {
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: map[string]string{"app": "s"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "old"}}},
		}
	}
	runs := pod("s-0")
	runs.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	run(t, func(w *world) {
		w.has("01=old 0=old* 1=one 2=one other=old s-=old s-x=old")
		for _, p := range w.pods() {
			if _, ok := ordinal("s", p.Name); ok != metav1.IsControlledBy(p, w.set()) {
				t.Errorf("%s: controlled: %v", p.Name, !ok)
			}
		}
	}, runs, pod("s-01"), pod("other"), pod("s-s-"), pod("s-s-x"), set(parallel))
}

// TestLabels: a pod whose labels of its name somebody changed gets them back, and one that is
// adopted gets them.
func TestLabels(t *testing.T) {
	runs := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "s-0", Namespace: "ns", Labels: map[string]string{"app": "s", "own": "kept"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "old"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	run(t, func(w *world) {
		labelled := func(step string) {
			t.Helper()
			if p := w.pods()[0]; p.Labels[appsv1.StatefulSetPodNameLabel] != "s-0" || p.Labels[appsv1.PodIndexLabel] != "0" || p.Labels["own"] != "kept" {
				t.Errorf("%s: labels %v", step, p.Labels)
			}
		}
		labelled("adopted")
		p := w.pods()[0]
		p.Labels[appsv1.StatefulSetPodNameLabel] = "s-1"
		_, err := w.Client.CoreV1().Pods("ns").Update(t.Context(), p, metav1.UpdateOptions{})
		w.Must(err)
		w.settle(0)
		labelled("changed")
		if e := apitest.Events(w.events); !slices.Contains(e, "Normal SuccessfulUpdate Update Pod s-0 in StatefulSet s successful") {
			t.Errorf("events %q", e)
		}
	}, runs, set(replicas(1), strategy(appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType})))
}
