package controlplane

// What nodes and pods use, as kubectl top shows it.

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/apiserver/usage"
)

// said is what the node node-1 says: of its pods the first uses less. It says something of
// a pod of another node too.
func said(pods ...*corev1.Pod) *stats.Summary {
	use := func(cores, bytes uint64) (*stats.CPUStats, *stats.MemoryStats) {
		return &stats.CPUStats{Time: metav1.Now(), UsageNanoCores: &cores}, &stats.MemoryStats{WorkingSetBytes: &bytes}
	}
	s := &stats.Summary{Node: stats.NodeStats{NodeName: "node-1"}}
	s.Node.CPU, s.Node.Memory = use(250e6, 1<<30)
	for i, p := range pods {
		ps := stats.PodStats{PodRef: stats.PodReference{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}}
		for _, c := range p.Spec.Containers {
			cs := stats.ContainerStats{Name: c.Name}
			cs.CPU, cs.Memory = use(uint64(i+1)*10e6, uint64(i+1)<<20)
			ps.Containers = append(ps.Containers, cs)
		}
		s.Pods = append(s.Pods, ps)
	}
	return s
}

func TestTop(t *testing.T) {
	var pods []*corev1.Pod // complete before the first question
	c := workload{startClusterIn(t, t.TempDir(), func(c *apiserver.Config) {
		c.Usage = func(apiserver.Getters) usage.Source {
			return func(_ context.Context, node string) (*stats.Summary, error) {
				if node != "node-1" {
					return nil, errors.New("no agent is connected")
				}
				return said(pods...), nil
			}
		}
	})}
	for _, n := range []string{"node-1", "node-2"} {
		room := corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("4Gi"), "pods": resource.MustParse("10")}
		_, err := c.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"name": n}},
			Status:     corev1.NodeStatus{Capacity: room, Allocatable: room},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []struct{ name, node string }{{"one", "node-1"}, {"two", "node-1"}, {"far", "node-2"}} {
		pods = append(pods, c.placed(p.name, p.node))
	}
	c.remembered(t, 2, len(pods))
	c.sees(`^NAME +CPU\(cores\) +CPU\(%\) +MEMORY\(bytes\) +MEMORY\(%\) *\nnode-1 +250m +25% +1024Mi +25% *\nnode-2 +<unknown>`, "top", "node")
	c.sees(`^NAME +CPU\(cores\) +MEMORY\(bytes\) *\none +20m +2Mi *\ntwo +40m +4Mi *\n$`, "top", "pod")
	c.sees(`\ntwo [^\n]*\none `, "top", "pod", "--sort-by=cpu")
	c.sees(`^one +a +10m +1Mi *\none +b +10m +1Mi *\ntwo +a +20m +2Mi *\n`, "top", "pod", "--containers", "--no-headers")
	c.sees(`^two +40m +4Mi *\n$`, "top", "pod", "-l", "app=two", "--no-headers")
	c.sees(`^one +20m +2Mi *\n$`, "top", "pod", "one", "--no-headers")
	c.sees(`^default +one .*^default +two `, "top", "pod", "-A", "--no-headers")
	c.sees(`^NAME +CPU +MEMORY +WINDOW *\nnode-1 +250m +1Gi +10s\n$`, "get", "nodes.metrics.k8s.io")
	c.sees(`^NAME +CPU +MEMORY +WINDOW *\ntwo +40m +4Mi +10s\n$`, "get", "pods.metrics.k8s.io", "two")
	c.sees(`"name":"two".*"labels":\{"app":"two"\}`, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods?fieldSelector=metadata.name%3Dtwo")
	c.sees(`^nodes +metrics.k8s.io/v1beta1 +false +NodeMetrics\npods +metrics.k8s.io/v1beta1 +true +PodMetrics\n$`, "api-resources", "--api-group=metrics.k8s.io", "--no-headers")
	c.sees(`The memory usage is the memory working set`, "explain", "nodes.usage", "--api-version=metrics.k8s.io/v1beta1")
	c.sees(`^pod/one`, "get", "pod", "one", "-o", "name") // the short name is still the pod itself
	for _, args := range [][]string{{"top", "node", "node-2"}, {"top", "pod", "far"}, {"get", "nodes.metrics.k8s.io", "node-2"}} {
		if out, err := c.kubectl(args...); err == nil {
			t.Errorf("kubectl %v: %s", args, out)
		}
	}
	c.viewed(t)
}

// remembered waits until the server's watch cache, from which it says what is used, has this
// many nodes and running pods.
func (c workload) remembered(t *testing.T, nodes, pods int) {
	t.Helper()
	c.becomes(fmt.Sprint(nodes, pods), func() string {
		n, err := c.admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err.Error()
		}
		p, err := c.admin.CoreV1().Pods(workNamespace).List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err.Error()
		}
		running := 0
		for i := range p.Items {
			if p.Items[i].Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return fmt.Sprint(len(n.Items), running)
	})
}

// placed is a pod that runs on a node, made as a scheduler and the node would.
func (c workload) placed(name, node string) *corev1.Pod {
	c.t.Helper()
	p, err := c.admin.CoreV1().Pods(workNamespace).Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{
			{Name: "a", Image: "none"}, {Name: "b", Image: "none"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	p.Status.Phase, p.Status.StartTime = corev1.PodRunning, &metav1.Time{Time: time.Now()}
	if p, err = c.admin.CoreV1().Pods(workNamespace).UpdateStatus(c.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// viewed: the role view sees what pods use, in its namespace, and not what nodes use.
func (c workload) viewed(t *testing.T) {
	const viewer = "viewer"
	_, err := c.admin.RbacV1().RoleBindings(workNamespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: viewer}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: viewer}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.becomes("allowed", func() string { // not by can-i, which ends this process if the answer is no
		if _, err := c.kubectl("top", "pod", "--as", viewer); err != nil {
			return err.Error()
		}
		return "allowed"
	})
	c.sees(`^one +20m`, "top", "pod", "--as", viewer, "--no-headers")
	if out, err := c.kubectl("top", "node", "--as", viewer); err == nil {
		t.Errorf("a viewer sees nodes: %s", out)
	}
}
