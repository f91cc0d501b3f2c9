package scheduler

// Trial: whether a node could take a pod if other pods were on it than are.

import (
	"maps"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A trial is one node as p would find it if pods were taken from it or added. The node's
// account is a copy. p's pod affinity is the caller's, and end restores it.
type trial struct {
	p      *podInfo
	node   nodeInfo
	around *podAffinity
	names  func(namespace string) labels.Set
	own    labels.Set // the labels of p's namespace
	// others has, for each spread of around that counts this node, the fewest pods that
	// another value has, and before, what was counted as fewest.
	others, before map[int]int
	by             map[*podInfo]int // what has been counted: 1 is added, -1 is taken away
}

// try begins a trial. The caller holds c.mu until the trial has ended.
func (c *cache) tryLocked(p *podInfo, n *nodeInfo, around *podAffinity) *trial {
	t := &trial{
		p: p, around: around, names: c.namespaceLabels, own: c.namespaceLabels(p.pod.Namespace), by: make(map[*podInfo]int),
		node: nodeInfo{node: n.node, allocatable: n.allocatable, requested: n.requested, pods: maps.Clone(n.pods)},
	}
	t.node.requested.other = maps.Clone(n.requested.other)
	if around == nil {
		return t
	}
	t.others, t.before = make(map[int]int), make(map[int]int)
	for i := range around.spread {
		s := &around.spread[i]
		if s.hard && s.counts(p, n.node) {
			t.others[i], t.before[i] = s.fewestBut(n.node.Labels[s.key]), s.fewest
		}
	}
	return t
}

// fewestBut is the fewest pods that a value other than v has.
func (s *spreading) fewestBut(v string) int {
	fewest := math.MaxInt
	for value, n := range s.pods {
		if value != v {
			fewest = min(fewest, n)
		}
	}
	return fewest
}

// add counts q on the node.
func (t *trial) add(q *podInfo) { t.count(q, 1) }

// remove no longer counts q, which is on the node.
func (t *trial) remove(q *podInfo) { t.count(q, -1) }

func (t *trial) count(q *podInfo, by int) {
	if by > 0 {
		t.node.pods[keyOf(q.pod)] = q
	} else {
		delete(t.node.pods, keyOf(q.pod))
	}
	t.node.requested.add(&q.requests, int64(by))
	if t.by[q] += by; t.by[q] == 0 {
		delete(t.by, q)
	}
	t.around.count(q, t.node.node, t.own, t.names, by)
	for i, others := range t.others {
		s := &t.around.spread[i]
		if !s.selects(t.p, q) {
			continue
		}
		v := t.node.node.Labels[s.key]
		s.pods[v] += by
		if len(s.pods) >= s.least {
			s.fewest = min(others, s.pods[v])
		}
	}
}

// count notes that q is on node, or with by -1 that it is not. Spreads are not counted.
func (w *podAffinity) count(q *podInfo, node *corev1.Node, own labels.Set, names func(string) labels.Set, by int) {
	if w == nil {
		return
	}
	w.asked(q, node, own, by)
	if !w.p.podTerms.empty() {
		w.meet(q, node, names, by)
	}
}

// end takes back what the trial counted in p's pod affinity.
func (t *trial) end() {
	for q, by := range maps.Clone(t.by) {
		t.count(q, -by)
	}
	for i, fewest := range t.before {
		t.around.spread[i].fewest = fewest
	}
}

// fits tells whether the node takes p both with rivals, who have been promised a place
// there, and without, as it may come that some of them go elsewhere. It counts in why what
// keeps p away.
func (t *trial) fits(rivals []*podInfo, why map[reason]int) bool {
	if len(rivals) > 0 {
		for _, q := range rivals {
			t.add(q)
		}
		ok := t.takes(why)
		for _, q := range rivals {
			t.remove(q)
		}
		if !ok {
			return false
		}
	}
	return t.takes(why)
}

func (t *trial) takes(why map[reason]int) bool {
	return filter(t.p, &t.node, why) && t.around.allows(t.node.node, t.own, why)
}
