// Tolerations that compare numbers, and their gate.

package apiserver_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// TestComparisonsAreGated: pods tolerate by Lt and Gt where the gate is on. Where it is off
// again, which it is by default, none comes to, and those that do can be changed.
func TestComparisonsAreGated(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	pod := func(name string, op corev1.TolerationOperator) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: op, Value: "5"}}
		return p
	}
	gates := apiserver.FeatureGates()
	if err := gates.Set("TaintTolerationComparisonOperators=true"); err != nil {
		t.Fatal(err)
	}
	on := must(startWith(dir, func(c *apiserver.Config) { c.FeatureGates = gates }))(t)
	until(t, "the namespace takes pods", func() bool {
		_, err := on.client.CoreV1().Pods("default").Create(ctx, pod("before", corev1.TolerationOpGt), metav1.CreateOptions{})
		return err == nil
	})
	if err := on.stop(); err != nil {
		t.Fatal(err)
	}

	off := must(start(dir))(t)
	pods := off.client.CoreV1().Pods("default")
	for _, op := range []corev1.TolerationOperator{corev1.TolerationOpLt, corev1.TolerationOpGt} {
		_, err := pods.Create(ctx, pod("after", op), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `spec.tolerations[0].operator: Unsupported value: "`+string(op)+`": supported values: "Equal", "Exists"`) {
			t.Errorf("%s: %v", op, err)
		}
	}
	must(pods.Create(ctx, pod("equal", corev1.TolerationOpEqual), metav1.CreateOptions{}))(t)
	add := []byte(`[{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "k", "operator": "Lt", "value": "5"}}]`)
	if _, err := pods.Patch(ctx, "equal", types.JSONPatchType, add, metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("added: %v", err)
	}
	must(pods.Patch(ctx, "before", types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`), metav1.PatchOptions{}))(t)
	if err := off.stop(); err != nil {
		t.Error(err)
	}
}
