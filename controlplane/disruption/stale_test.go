package disruption

// Pods that were to be disrupted and are not deleted.

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStaleTarget: that a pod is to be disrupted is taken back if it is not deleted, unless its node
// says so.
func TestStaleTarget(t *testing.T) {
	objs := pods("p", 4, nil)
	for i, reason := range []string{"EvictionByEvictionAPI", corev1.PodReasonTerminationByKubelet, "PreemptionByScheduler", "EvictionByEvictionAPI"} {
		p, ok := objs[i].(*corev1.Pod)
		if !ok {
			t.Fatal(objs[i])
		}
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: "m"})
	}
	synctest.Test(t, func(*testing.T) { // for its time
		for _, o := range objs {
			if p, ok := o.(*corev1.Pod); ok {
				p.Status.Conditions[1].LastTransitionTime = metav1.Now()
			}
		}
	})
	target := func(w *world, name string) string {
		p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		c := p.Status.Conditions[1]
		return fmt.Sprintf("%s %q %q", c.Status, c.Reason, c.Message)
	}
	run(t, func(w *world) {
		if err := w.client.CoreV1().Pods("ns").Delete(w.ctx, "p-2", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		w.change("p-3", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		w.settle(DefaultDeletionTimeout - 6*time.Second)
		if got := target(w, "p-0"); got != `True "EvictionByEvictionAPI" "m"` {
			t.Errorf("before two minutes: %s", got)
		}
		w.settle(6 * time.Second)
		for name, want := range map[string]string{
			"p-0": `False "" ""`, "p-1": `True "TerminationByKubelet" "m"`, "p-2": `True "PreemptionByScheduler" "m"`, "p-3": `True "EvictionByEvictionAPI" "m"`,
		} {
			if got := target(w, name); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
		requests := len(w.client.Actions())
		w.settle(time.Hour)
		if n := len(w.client.Actions()); n != requests {
			t.Errorf("%d requests while nothing happens", n-requests)
		}
	}, objs...)
}
