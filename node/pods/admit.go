// This file decides whether a pod may run on this node. Everything in it is pure.

package pods

import (
	"fmt"
	"maps"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	componentresource "k8s.io/component-helpers/resource"
	schedulingv1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// A refusal is why a pod may not run here. Its reason becomes the pod's, its message
// that of the event.
type refusal struct{ reason, message string }

// status is the message that becomes the pod's.
func (r *refusal) status() string {
	if r.reason == reasonNodeShutdown {
		return r.message // the event has the reason already
	}
	return "Pod was rejected: " + r.message
}

// admit returns why the pod does not fit the node beside the others, which have been
// admitted and have not ended. If the node is not known yet, only the number of pods
// is checked.
func admit(pod *corev1.Pod, node *corev1.Node, others []*corev1.Pod, maxPods int) *refusal {
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		return &refusal{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	if r := refuseSecurity(pod); r != nil {
		return r
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
	if _, found := schedulingv1.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations, noExecute, true); found {
		return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
	}
	if portsClash(pod, others) {
		return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	return fits(pod, node, others, maxPods)
}

func predicate(reason, message string) *refusal {
	return &refusal{reason, fmt.Sprintf("Predicate %s failed: %s", reason, message)}
}

func outOf(name string, requested, used, capacity int64) *refusal {
	return &refusal{"OutOf" + name, fmt.Sprintf(
		"Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity)}
}

// fits checks the node's own resources; other resources are not the node's to check. A
// pod that requests none of a resource fits even if the others exceed it.
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
	for _, name := range counted(wanted) {
		want, taken := wanted[name], used[name]
		have, known := allocatable[name]
		if want.IsZero() || !known && !ownResources[name] {
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

// ownResources are those that every node has, possibly with the amount zero.
var ownResources = map[corev1.ResourceName]bool{
	corev1.ResourceCPU: true, corev1.ResourceMemory: true, corev1.ResourceEphemeralStorage: true,
}

// counted lists the requested resources in a fixed order, the node's own first, so that
// a pod that lacks several is always refused for the same one.
func counted(wanted corev1.ResourceList) []corev1.ResourceName {
	names := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !ownResources[name] {
			names = append(names, name)
		}
	}
	return names
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

// hostPorts calls tell with each host port of a pod: those of its containers and of its
// sidecars.
func hostPorts(pod *corev1.Pod, tell func(p hostPort, ip string)) {
	of := func(c *corev1.Container) {
		for _, p := range c.Ports {
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
	for i := range pod.Spec.Containers {
		of(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			of(c)
		}
	}
}
