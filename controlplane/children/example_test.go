// Example: which pods a controller deletes first.

package children_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/children"
)

// A pod that is on no node comes first, and a pod that serves comes last.
func ExampleByWorth() {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	pod := func(name, node string, phase corev1.PodPhase, ready corev1.ConditionStatus) *corev1.Pod {
		conditions := []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}}
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(-2 * time.Hour))},
			Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase, Conditions: conditions},
		}
	}
	pods := []*corev1.Pod{
		pod("serves", "node-1", corev1.PodRunning, corev1.ConditionTrue),
		pod("starts", "node-1", corev1.PodPending, corev1.ConditionFalse),
		pod("waits", "", corev1.PodPending, corev1.ConditionFalse),
		pod("fails", "node-1", corev1.PodRunning, corev1.ConditionFalse),
	}
	children.ByWorth(pods, func(string) int { return 1 }, now)
	for _, p := range pods {
		fmt.Println(p.Name, children.Active(p), children.Ready(p))
	}
	// Output:
	// waits true false
	// starts true false
	// fails true false
	// serves true true
}
