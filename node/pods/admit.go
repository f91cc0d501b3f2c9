// This file decides whether a pod may run on this node. Everything in it is pure.

package pods

import (
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	componentresource "k8s.io/component-helpers/resource"
	schedulingv1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// A refusal is why a pod may not run here. Its reason and message become the
// pod's.
type refusal struct{ reason, message string }

// admit says whether the pod fits the node beside the others, which have been
// admitted and have not ended. A node not known yet refuses nothing but for the
// number of pods.
func admit(pod *corev1.Pod, node *corev1.Node, others []*corev1.Pod, maxPods int) *refusal {
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		return &refusal{"PodOSNotSupported", "Pod was rejected: failed to admit pod as the OS field doesn't match node OS"}
	}
	if node == nil {
		if len(others) >= maxPods {
			return outOf("pods", 1, int64(len(others)), int64(maxPods))
		}
		return nil
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	noExecute := func(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }
	if taint, found := schedulingv1.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations, noExecute, false); found {
		return predicate("TaintToleration", fmt.Sprintf("node(s) had untolerated taint {%s: %s}", taint.Key, taint.Value))
	}
	if portsClash(pod, others) {
		return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	return fits(pod, node, others, maxPods)
}

func predicate(reason, message string) *refusal {
	return &refusal{reason, fmt.Sprintf("Pod was rejected: Predicate %s failed: %s", reason, message)}
}

func outOf(name string, requested, used, capacity int64) *refusal {
	return &refusal{"OutOf" + name, fmt.Sprintf(
		"Pod was rejected: Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity)}
}

// fits counts what the node owns; a resource it does not know is somebody else's
// to count.
func fits(pod *corev1.Pod, node *corev1.Node, others []*corev1.Pod, maxPods int) *refusal {
	allocatable := node.Status.Allocatable
	if q, ok := allocatable[corev1.ResourcePods]; ok {
		maxPods = int(q.Value())
	}
	if len(others)+1 > maxPods {
		return outOf("pods", 1, int64(len(others)), int64(maxPods))
	}
	wanted := componentresource.PodRequests(pod, componentresource.PodResourcesOptions{})
	used := corev1.ResourceList{}
	for _, o := range others {
		for name, q := range componentresource.PodRequests(o, componentresource.PodResourcesOptions{}) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		want, have, taken := wanted[name], allocatable[name], used[name]
		if want.IsZero() {
			continue
		}
		sum := taken.DeepCopy()
		sum.Add(want)
		if sum.Cmp(have) > 0 {
			return outOf(string(name), amount(name, want), amount(name, taken), amount(name, have))
		}
	}
	return nil
}

// amount is how Kubernetes counts a resource: CPU in thousandths.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

type hostPort struct {
	protocol corev1.Protocol
	port     int32
}

// portsClash reports whether two pods want the same port of the node at addresses
// that overlap.
func portsClash(pod *corev1.Pod, others []*corev1.Pod) bool {
	taken := map[hostPort][]string{}
	for _, o := range others {
		hostPorts(o, func(p hostPort, ip string) { taken[p] = append(taken[p], ip) })
	}
	clash := false
	hostPorts(pod, func(p hostPort, ip string) {
		for _, other := range taken[p] {
			clash = clash || ip == other || ip == "" || other == ""
		}
	})
	return clash
}

func hostPorts(pod *corev1.Pod, tell func(p hostPort, ip string)) {
	for i := range pod.Spec.Containers {
		for _, p := range pod.Spec.Containers[i].Ports {
			if p.HostPort == 0 {
				continue
			}
			ip := p.HostIP
			if ip == "0.0.0.0" || ip == "::" {
				ip = ""
			}
			protocol := p.Protocol
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			tell(hostPort{protocol, p.HostPort}, ip)
		}
	}
}
