package controlplane

// Preemption against a real API server and the controllers: classes of priority, a budget,
// pods that take their time to end, and one that may not push others aside.

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

// small makes a node that has room for one core and ten pods.
func (c workload) small(name string) {
	c.t.Helper()
	c.machine(name)
	nodes := c.admin.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := nodes.Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("1")
		n.Status.Capacity = n.Status.Allocatable
		_, err = nodes.UpdateStatus(c.t.Context(), n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// full makes a pod that needs all of a small node. An empty node leaves that to the
// scheduler.
func (c workload) full(name, class, node string) *corev1.Pod {
	c.t.Helper()
	p, err := c.admin.CoreV1().Pods(workNamespace).Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: node, PriorityClassName: class,
			Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// place is where a pod is and where it is nominated to, and whether it is ending and why.
func (c workload) place(name string) func() string {
	return func() string {
		p, err := c.admin.CoreV1().Pods(workNamespace).Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		out := fmt.Sprintf("on %q, nominated %q", p.Spec.NodeName, p.Status.NominatedNodeName)
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.DisruptionTarget {
				out += ", " + cond.Reason
			}
		}
		if p.DeletionTimestamp != nil {
			out += fmt.Sprintf(", ending in %d s", *p.DeletionGracePeriodSeconds)
		}
		return out
	}
}

// end removes a pod at once, as its node does when its containers have ended.
func (c workload) end(name string) {
	c.t.Helper()
	err := c.admin.CoreV1().Pods(workNamespace).Delete(c.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if err != nil {
		c.t.Fatal(err)
	}
}

// classes makes two classes of priority, and a budget that protects the pods app=guarded.
func (c workload) classes() {
	c.t.Helper()
	for _, class := range []schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "middle"}, Value: 5},
		{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000},
		{ObjectMeta: metav1.ObjectMeta{Name: "patient"}, Value: 2000, PreemptionPolicy: ptr.To(corev1.PreemptNever)},
	} {
		if _, err := c.admin.SchedulingV1().PriorityClasses().Create(c.t.Context(), &class, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
	_, err := c.admin.PolicyV1().PodDisruptionBudgets(workNamespace).Create(c.t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "guard"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
}

// TestPreemption: a pod gets the node of one that is less important and not protected,
// after that has ended; then of one that is protected, as there is no other.
func TestPreemption(t *testing.T) {
	c := workload{startCluster(t)}
	c.classes()
	c.small("left")
	c.small("right")
	c.full("guarded", "", "left")
	c.phase("guarded", corev1.PodRunning, corev1.ConditionTrue)
	c.full("free", "middle", "right")
	c.full("patient", "patient", "")
	c.becomes("true", func() string {
		out, err := c.kubectl("get", "pod", "patient", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
		return fmt.Sprint(err == nil && strings.HasSuffix(out, "Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."))
	})
	c.becomes(`on "right", nominated ""`, c.place("free"))
	c.end("patient")

	high := c.full("high", "high", "")
	c.becomes(`on "", nominated "right"`, c.place("high"))
	c.becomes(`on "right", nominated "", PreemptionByScheduler, ending in 30 s`, c.place("free"))
	c.sees(`Preempted .*default-scheduler.*Preempted by pod `+string(high.UID)+` on node right`, "describe", "pod", "free")
	c.sees(`FailedScheduling .*default-scheduler.*0/2 nodes are available: 2 Insufficient cpu\.$`, "describe", "pod", "high")
	c.full("late", "", "") // which takes neither what was promised to another nor a place from its equals
	c.end("free")
	c.becomes(`on "right", nominated ""`, c.place("high"))
	c.becomes(`on "left", nominated ""`, c.place("guarded"))

	c.full("higher", "high", "")
	c.becomes(`on "", nominated "left"`, c.place("higher"))
	c.becomes(`on "left", nominated "", PreemptionByScheduler, ending in 30 s`, c.place("guarded"))
	c.end("guarded")
	c.becomes(`on "left", nominated ""`, c.place("higher"))
	c.becomes("true", func() string {
		out, err := c.kubectl("get", "pod", "late", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
		return fmt.Sprint(err == nil && strings.HasSuffix(out, "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."))
	})
	if !c.writers.wrote("kube-scheduler") {
		t.Error("nothing was written by kube-scheduler")
	}
}
