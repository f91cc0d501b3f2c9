// Evictions.

package apiserver_test

import (
	"fmt"
	"strings"
	"sync"
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
	b.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: "False", Reason: policyv1.SyncFailedReason, Message: "no such owner", LastTransitionTime: metav1.Now()}}
	b = must(budgets.UpdateStatus(ctx, b, metav1.UpdateOptions{}))(t)
	err = evict("b")
	if cause, ok := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause); !ok || !strings.HasSuffix(cause.Message, "because it failed sync: no such owner") {
		t.Errorf("a budget that could not be worked out: %v", err)
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		t.Errorf("told when to come back, by which clients wait without a word: %d s", seconds)
	}
	b.Status.Conditions = nil
	must(budgets.UpdateStatus(ctx, b, metav1.UpdateOptions{}))(t)
	// One that does not serve costs nothing while enough others do.
	if err = evict("c"); err != nil || !gone("c") {
		t.Errorf("unhealthy: %v", err)
	}
	must(budgets.Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}, metav1.CreateOptions{}))(t)
	if err = evict("b"); err == nil || err.Error() != "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support." {
		t.Errorf("two budgets: %v", err)
	}
	if err = evict("nobody"); !apierrors.IsNotFound(err) {
		t.Errorf("nobody: %v", err)
	}
}

// TestEvictionMarks: a pod that goes slowly says that it was evicted; one that
// was not evicted after all does not.
func TestEvictionMarks(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	pods := shared.client.CoreV1().Pods(ns)
	running(t, ns, "slow", "True")
	target := func() *corev1.PodCondition {
		p := must(pods.Get(ctx, "slow", metav1.GetOptions{}))(t)
		for i := range p.Status.Conditions {
			if p.Status.Conditions[i].Type == corev1.DisruptionTarget {
				return &p.Status.Conditions[i]
			}
		}
		return nil
	}
	e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "slow", Namespace: ns}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
	if err := pods.EvictV1(ctx, e); err != nil || target() != nil {
		t.Errorf("dry run: %v, condition %+v", err, target())
	}
	wrong := "1"
	e.DeleteOptions = &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &wrong}}
	if err := pods.EvictV1(ctx, e); !apierrors.IsConflict(err) || target() != nil {
		t.Errorf("another version: %v, condition %+v", err, target())
	}
	must(pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pending"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{}))(t)
	early := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "pending", Namespace: ns}, DeleteOptions: e.DeleteOptions}
	if err := pods.EvictV1(ctx, early); !apierrors.IsConflict(err) {
		t.Errorf("another version of a pod that is pending: %v", err)
	}
	e.DeleteOptions = &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To(must(pods.Get(ctx, "slow", metav1.GetOptions{}))(t).ResourceVersion)}}
	if err := pods.EvictV1(ctx, e); err != nil {
		t.Fatalf("this version: %v", err)
	}
	if c := target(); c == nil || c.Status != corev1.ConditionTrue || c.Reason != "EvictionByEvictionAPI" || c.LastTransitionTime.IsZero() {
		t.Errorf("condition %+v", c)
	}
	if p := must(pods.Get(ctx, "slow", metav1.GetOptions{}))(t); p.DeletionTimestamp == nil {
		t.Error("not being deleted")
	}
}

// TestEvictionContended: evictions under one budget at the same time get just
// what it allows, none a conflict.
func TestEvictionContended(t *testing.T) {
	const many, allowed = 12, 5
	ctx, ns := t.Context(), namespace(t)
	budgets := shared.client.PolicyV1().PodDisruptionBudgets(ns)
	b := must(budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}},
	}, metav1.CreateOptions{}))(t)
	for i := range many {
		running(t, ns, fmt.Sprint("p", i), "True")
	}
	b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, DisruptionsAllowed: allowed, CurrentHealthy: many, DesiredHealthy: many - allowed, ExpectedPods: many}
	must(budgets.UpdateStatus(ctx, b, metav1.UpdateOptions{}))(t)
	errs := make([]error, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			errs[i] = shared.client.CoreV1().Pods(ns).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Namespace: ns}})
		})
	}
	wg.Wait()
	granted := 0
	for i, err := range errs {
		switch {
		case err == nil:
			granted++
		case !apierrors.IsTooManyRequests(err):
			t.Errorf("p%d: %v", i, err)
		}
	}
	b = must(budgets.Get(ctx, "b", metav1.GetOptions{}))(t)
	if granted != allowed || b.Status.DisruptionsAllowed != 0 || len(b.Status.DisruptedPods) != allowed {
		t.Errorf("%d granted, %d left, %d noted", granted, b.Status.DisruptionsAllowed, len(b.Status.DisruptedPods))
	}
	if len(b.Status.Conditions) != 1 || b.Status.Conditions[0].Reason != policyv1.InsufficientPodsReason {
		t.Errorf("conditions %+v", b.Status.Conditions)
	}
}
