// An object larger than the store takes.

package apiserver_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTooLargeForTheStore(t *testing.T) {
	ctx := t.Context()
	pods := shared.client.CoreV1().Pods("default")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large"}}
	// What a pod is made of has no limit of its own, as a ConfigMap's data has.
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Args: []string{strings.Repeat("x", 1700<<10)}}}
	_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if !apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), "more than etcd accepts") {
		t.Errorf("create: %v", err)
	}
	if _, err := pods.Get(ctx, "large", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a create that was refused: %v", err)
	}

	pod.Spec.Containers[0].Args = nil
	if pod, err = pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod.Status.Message = strings.Repeat("x", 1700<<10)
	if _, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("update: %v", err)
	}
	if err := pods.Delete(ctx, "large", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
