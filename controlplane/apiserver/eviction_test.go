// Evictions.

package apiserver_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// running makes a pod that serves, or at least runs.
func running(t *testing.T, ns, name string, ready corev1.ConditionStatus) {
	t.Helper()
	pods := shared.client.CoreV1().Pods(ns)
	p := pod(name)
	p.Labels, p.Spec.NodeName = map[string]string{"app": "x"}, "n"
	p = must(pods.Create(t.Context(), p, metav1.CreateOptions{}))(t)
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	must(pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{}))(t)
}

func TestEviction(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	pods, budgets := shared.client.CoreV1().Pods(ns), shared.client.PolicyV1().PodDisruptionBudgets(ns)
	evict := func(name string) error {
		e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}}
		// Told to come back later, the client would.
		return shared.client.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name(name).SubResource("eviction").
			MaxRetries(0).Body(e).Do(ctx).Error()
	}
	gone := func(name string) bool {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	for name, ready := range map[string]corev1.ConditionStatus{"a": "True", "b": "True", "c": "False"} {
		running(t, ns, name, ready)
	}
	running(t, ns, "free", "True")
	if err := evict("free"); err != nil || !gone("free") {
		t.Errorf("without a budget: %v", err)
	}

	b := must(budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}},
	}, metav1.CreateOptions{}))(t)
	err := evict("a")
	if !apierrors.IsTooManyRequests(err) {
		t.Errorf("with a budget nobody has looked at: %v", err)
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != 10 {
		t.Errorf("come back in %d s", seconds)
	}
	b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, DisruptionsAllowed: 1, CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 3}
	must(budgets.UpdateStatus(ctx, b, metav1.UpdateOptions{}))(t)
	if err = evict("a"); err != nil || !gone("a") {
		t.Errorf("one is allowed: %v", err)
	}
	b = must(budgets.Get(ctx, "b", metav1.GetOptions{}))(t)
	if _, ok := b.Status.DisruptedPods["a"]; b.Status.DisruptionsAllowed != 0 || !ok {
		t.Errorf("budget not charged: %+v", b.Status)
	}
	err = evict("b")
	if !apierrors.IsTooManyRequests(err) || gone("b") || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
		t.Errorf("two are not: %v", err)
	}
	// One that does not serve costs nothing while enough others do.
	if err = evict("c"); err != nil || !gone("c") {
		t.Errorf("unhealthy: %v", err)
	}
	must(budgets.Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}, metav1.CreateOptions{}))(t)
	if err = evict("b"); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "more than one") {
		t.Errorf("two budgets: %v", err)
	}
	if err = evict("nobody"); !apierrors.IsNotFound(err) {
		t.Errorf("nobody: %v", err)
	}
}
