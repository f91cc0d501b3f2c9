package apiserver_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod can have what its node has, also for its init containers, and no more.
func TestResize(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	has := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("2Gi")}
	nodes, pods := shared.client.CoreV1().Nodes(), shared.client.CoreV1().Pods(ns)
	node := must(nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: ns}, Status: corev1.NodeStatus{Allocatable: has, Capacity: has}}, metav1.CreateOptions{}))(t)
	p := pod("p")
	p.Spec.NodeName = ns
	p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i:1"}}
	for _, c := range []*corev1.Container{&p.Spec.InitContainers[0], &p.Spec.Containers[0]} {
		c.Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}
	}
	p = must(pods.Create(ctx, p, metav1.CreateOptions{}))(t)
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: p.Spec.Containers[0].Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, Resources: &p.Spec.Containers[0].Resources,
	}}
	p = must(pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}))(t)

	p.Spec.InitContainers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("200m")
	if _, err := pods.UpdateResize(ctx, p.Name, p, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "requires features InPlacePodVerticalScalingInitContainers which are not available on node") {
		t.Errorf("the node does not say that it can: %v", err)
	}
	node.Status.DeclaredFeatures = []string{"InPlacePodVerticalScalingInitContainers"}
	must(nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}))(t)
	until(t, "the server knows that the node can", func() bool {
		changed, err := pods.UpdateResize(ctx, p.Name, p, metav1.UpdateOptions{})
		if err == nil {
			p = changed
		}
		return err == nil
	})
	if p.Spec.InitContainers[0].Resources.Requests.Cpu().MilliValue() != 200 {
		t.Errorf("an init container has %v", p.Spec.InitContainers[0].Resources)
	}
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
	if _, err := pods.UpdateResize(ctx, p.Name, p, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000") {
		t.Errorf("more than the node has: %v", err)
	}
}
