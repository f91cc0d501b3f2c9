package podgc

// Which pods are removed: functions of the pods and nodes that there are.

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodeutil "k8s.io/component-helpers/node/util"
)

// A reason is why a pod is removed, as the metrics call it.
type reason string

const (
	reasonTerminated   reason = "terminated"
	reasonOutOfService reason = "out-of-service"
	reasonOrphaned     reason = "orphaned"
	reasonUnscheduled  reason = "unscheduled"
)

// A removal is a pod to be removed.
type removal struct {
	pod *corev1.Pod
	why reason
}

// ended tells whether a pod will not run again.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// terminated returns as many of the pods that have ended as there are above the
// threshold: evicted ones first, which nobody will read the logs of, then the
// oldest.
func terminated(pods []*corev1.Pod, threshold int) []removal {
	if threshold <= 0 {
		return nil
	}
	var over []*corev1.Pod
	for _, p := range pods {
		if ended(p) {
			over = append(over, p)
		}
	}
	surplus := len(over) - threshold
	if surplus <= 0 {
		return nil
	}
	slices.SortFunc(over, func(a, b *corev1.Pod) int {
		return cmp.Or(
			first(evicted(a), evicted(b)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Namespace, b.Namespace),
		)
	})
	return removals(over[:surplus], reasonTerminated)
}

func evicted(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted"
}

// first orders what is so before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// outOfService returns the pods that are being deleted on nodes that are not
// ready and that an administrator has declared out of service.
func outOfService(pods []*corev1.Pod, nodes map[string]*corev1.Node) []removal {
	return removals(where(pods, func(p *corev1.Pod) bool {
		n := nodes[p.Spec.NodeName]
		return p.DeletionTimestamp != nil && n != nil && !ready(n) &&
			slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
	}), reasonOutOfService)
}

func ready(n *corev1.Node) bool {
	_, c := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// orphaned returns the pods of nodes that are gone.
func orphaned(pods []*corev1.Pod, gone map[string]bool) []removal {
	return removals(where(pods, func(p *corev1.Pod) bool { return gone[p.Spec.NodeName] }), reasonOrphaned)
}

// unscheduled returns the pods that were deleted before they had a node.
func unscheduled(pods []*corev1.Pod) []removal {
	return removals(where(pods, func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil && p.Spec.NodeName == ""
	}), reasonUnscheduled)
}

func where(pods []*corev1.Pod, is func(*corev1.Pod) bool) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range pods {
		if is(p) {
			out = append(out, p)
		}
	}
	return out
}

func removals(pods []*corev1.Pod, why reason) []removal {
	out := make([]removal, 0, len(pods))
	for _, p := range pods {
		out = append(out, removal{p, why})
	}
	return out
}
