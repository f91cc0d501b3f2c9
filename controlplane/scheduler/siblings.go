package scheduler

// Siblings: the pods of one ReplicaSet or StatefulSet are spread over nodes and zones, as
// far as there is a choice, though they ask for nothing of the kind.

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What siblings may differ by in number, on nodes and in zones: the defaults of
// kube-scheduler's PodTopologySpread. They count for choosing only.
const (
	mostOnNode = 3
	mostInZone = 5
)

// A family is the pods of one controller. The namespace is part of it: pods of others that
// name the same owner are not.
type family struct {
	namespace string
	owner     types.UID
}

// familyOf is the family of a pod; ok is false if it has none that is spread.
func familyOf(pod *corev1.Pod) (f family, ok bool) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != "ReplicaSet" && ref.Kind != "StatefulSet" && ref.Kind != "ReplicationController" {
		return family{}, false
	}
	return family{pod.Namespace, ref.UID}, true
}

// families count the pods of each that are on a node, or on their way to it, and that
// nobody deletes.
type families map[family]map[string]int

// count notes that pod is on node, by is 1, or no longer is, by is -1.
func (fs families) count(pod *corev1.Pod, node string, by int) {
	f, ok := familyOf(pod)
	if !ok || pod.DeletionTimestamp != nil {
		return
	}
	on := fs[f]
	if on == nil {
		on = make(map[string]int)
		fs[f] = on
	}
	if on[node] += by; on[node] == 0 {
		delete(on, node)
	}
	if len(on) == 0 {
		delete(fs, f)
	}
}

// siblings are where the family of a pod is.
type siblings struct {
	on           map[string]int // by node
	in           map[string]int // by zone
	nodes, zones int            // how many there are
}

// siblingsLocked returns where the siblings of p are; nil if p says itself how it is to be
// spread, has none, or can be on one node only.
func (c *cache) siblingsLocked(p *podInfo) *siblings {
	f, ok := familyOf(p.pod)
	if !ok || len(p.spreads) > 0 || p.only != "" || len(c.families[f]) == 0 {
		return nil
	}
	s := &siblings{on: c.families[f], in: make(map[string]int), nodes: len(c.order), zones: len(c.zones)}
	for node, pods := range s.on {
		if n := c.nodes[node]; n != nil && n.node != nil {
			if zone, ok := n.node.Labels[corev1.LabelTopologyZone]; ok {
				s.in[zone] += pods
			}
		}
	}
	return s
}

// spreadScore is how many siblings are on node and in its zone, if it has one. Either counts for
// less if there are few of them.
func (s *siblings) spreadScore(node *corev1.Node) float64 {
	n := float64(s.on[node.Name])*math.Log(float64(s.nodes+2)) + mostOnNode - 1
	if zone, ok := node.Labels[corev1.LabelTopologyZone]; ok {
		n += float64(s.in[zone])*math.Log(float64(s.zones+2)) + mostInZone - 1
	}
	return n
}
