package apiserver_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A namespace's limit ranges give new pods what they do not ask for, and refuse what is
// too much.
func TestLimitRanges(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	cpu := func(v string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(v)}
	}
	must(shared.client.CoreV1().LimitRanges(ns).Create(ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypeContainer, Max: cpu("2"), Default: cpu("1"), DefaultRequest: cpu("500m")},
	}}}, metav1.CreateOptions{}))(t)
	n := 0
	until(t, "pods get limits", func() bool {
		n++
		got := must(shared.client.CoreV1().Pods(ns).Create(ctx, pod(fmt.Sprint("p", n)), metav1.CreateOptions{}))(t)
		r := got.Spec.Containers[0].Resources
		return r.Limits.Cpu().String() == "1" && r.Requests.Cpu().String() == "500m" && got.Status.QOSClass == corev1.PodQOSBurstable
	})
	greedy := pod("greedy")
	greedy.Spec.Containers[0].Resources.Limits = cpu("3")
	_, err := shared.client.CoreV1().Pods(ns).Create(ctx, greedy, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "maximum cpu usage per Container is 2, but limit is 3") {
		t.Errorf("%v", err)
	}
}
