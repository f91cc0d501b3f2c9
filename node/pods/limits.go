// This file computes the kernel's settings for a pod's resources, as the kubelet does.

package pods

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	componentresource "k8s.io/component-helpers/resource"

	"github.com/hawser-project/hawser/node/downward"
	"github.com/hawser-project/hawser/node/runtime"
)

// sharesPerCPU is the weight of one core, and minShares the least weight there is.
const (
	sharesPerCPU = 1024
	minShares    = 2
)

func shares(milliCPU int64) int64 { return max(milliCPU*sharesPerCPU/1000, minShares) }

func resourcesOf(c *corev1.Container) runtime.Resources {
	limits, requests := c.Resources.Limits, c.Resources.Requests
	milli := requests.Cpu().MilliValue()
	if requests.Cpu().IsZero() {
		milli = limits.Cpu().MilliValue()
	}
	return runtime.Resources{
		MemoryBytes: limits.Memory().Value(),
		CPUMilli:    limits.Cpu().MilliValue(),
		CPUShares:   shares(milli),
	}
}

// podResources are the limits of the whole pod: its weight is the sum of its containers'
// requests, and it has a limit of a kind if the pod itself or each of its containers
// has one. maxPIDs is the limit of processes of every pod; 0 means none.
func podResources(pod *corev1.Pod, maxPIDs int64) runtime.Resources {
	requests := componentresource.PodRequests(pod, componentresource.PodResourcesOptions{})
	limits := componentresource.PodLimits(pod, componentresource.PodResourcesOptions{})
	out := runtime.Resources{CPUShares: shares(requests.Cpu().MilliValue()), PIDs: maxPIDs}
	if downward.Limited(pod, corev1.ResourceMemory) {
		out.MemoryBytes = limits.Memory().Value()
	}
	if downward.Limited(pod, corev1.ResourceCPU) {
		out.CPUMilli = limits.Cpu().MilliValue()
	}
	return out
}

// Scores of oom_score_adj, as the kubelet gives them.
const (
	guaranteedOOMScore = -997
	bestEffortOOMScore = 1000
)

// nodeCriticalPriority is the least priority of a pod that is critical to its node
// (system-node-critical).
const nodeCriticalPriority = 2_000_001_000

// oomScore is the container's oom_score_adj: the kernel kills a container with a higher
// one first. It is lower for a larger memory request; a sidecar's is at most that of each regular
// container. memory is that of the node in bytes, 0 while it is not known.
func oomScore(pod *corev1.Pod, c *corev1.Container, memory int64) int {
	if p := pod.Spec.Priority; p != nil && *p >= nodeCriticalPriority {
		return guaranteedOOMScore
	}
	switch pod.Status.QOSClass {
	case corev1.PodQOSGuaranteed:
		return guaranteedOOMScore
	case corev1.PodQOSBestEffort:
		return bestEffortOOMScore
	}
	score := int64(bestEffortOOMScore)
	if memory > 0 {
		request := c.Resources.Requests.Memory().Value()
		if isSidecar(pod, c) {
			request = max(request, leastRequest(pod))
		}
		score -= (request + oomShare(pod)) * 1000 / memory
	}
	// The score stays between that of a guaranteed pod and that of one without requests.
	return int(min(max(score, bestEffortOOMScore+guaranteedOOMScore), bestEffortOOMScore-1))
}

// isSidecar reports whether c is an init container that runs beside the regular ones.
func isSidecar(pod *corev1.Pod, c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways &&
		slices.ContainsFunc(pod.Spec.InitContainers, func(init corev1.Container) bool { return init.Name == c.Name })
}

// leastRequest is the least memory request of the regular containers, in bytes.
func leastRequest(pod *corev1.Pod) int64 {
	least := int64(math.MaxInt64)
	for i := range pod.Spec.Containers {
		least = min(least, pod.Spec.Containers[i].Resources.Requests.Memory().Value())
	}
	return least
}

// oomShare is a container's even share of the pod's memory request beyond those of its containers,
// in bytes.
func oomShare(pod *corev1.Pod) int64 {
	if pod.Spec.Resources == nil {
		return 0
	}
	whole, ok := pod.Spec.Resources.Requests[corev1.ResourceMemory]
	if !ok {
		return 0
	}
	own := componentresource.AggregateContainerRequests(pod, componentresource.PodResourcesOptions{})
	return max(whole.Value()-own.Memory().Value(), 0) / int64(len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
}
