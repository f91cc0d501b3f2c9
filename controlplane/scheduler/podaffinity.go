package scheduler

// Pod affinity and topology spread: what existing pods mean for one that is to be placed.

import (
	"iter"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A domain is the nodes with one value of a label.
type domain struct{ key, value string }

// domainOf is the domain by a label that a node is in; ok is false if it has no such label.
func domainOf(node *corev1.Node, key string) (d domain, ok bool) {
	v, ok := node.Labels[key]
	return domain{key, v}, ok
}

// domains have something for each of some domains, by key and value, so that what all
// domains of a node have is found by its labels.
type domains[T any] map[string]map[string]T

func (ds domains[T]) set(d domain, f func(T) T) {
	values := ds[d.key]
	if values == nil {
		values = make(map[string]T)
		ds[d.key] = values
	}
	values[d.value] = f(values[d.value])
}

// of returns what the domains of a node have, of those that have something.
func (ds domains[T]) of(node *corev1.Node) iter.Seq[T] {
	return func(yield func(T) bool) {
		for key, values := range ds {
			if v, ok := node.Labels[key]; ok {
				if has, ok := values[v]; ok && !yield(has) {
					return
				}
			}
		}
	}
}

// podAffinity is what existing pods mean for p, for one decision. Nil means nothing.
type podAffinity struct {
	p                 *podInfo
	refusedByExisting domains[int]   // by domain, anti-affinity terms of existing pods that match p
	avoided           map[domain]int // pods there that p's anti-affinity terms match
	wanted            map[domain]int // pods there that p's affinity terms match, by the terms' keys; none with 0
	affinityScores    domains[int64]
	spread            []spreading // as p.spreads
	// siblings are the pods that p is spread among by default; nil if there are none.
	siblings *siblings
}

// A spreading is how many pods that one of p's spreads selects are in each domain.
type spreading struct {
	*spread
	pods   map[string]int // by value; of nodes that count
	fewest int            // of pods, and 0 if there are not enough domains
}

// hardPodAffinityWeight is the score of a required affinity term of an existing pod, as in Kubernetes.
const hardPodAffinityWeight = 1

var (
	refusedByExisting    = reason{text: "node(s) didn't satisfy existing pods anti-affinity rules", cause: byPods | byLabels | byEviction}
	antiAffinityConflict = reason{text: "node(s) didn't match pod anti-affinity rules", cause: byPods | byLabels | byEviction}
	affinityUnmet        = reason{text: "node(s) didn't match pod affinity rules", cause: byPods | byLabels}
	skewTooLarge         = reason{text: "node(s) didn't match pod topology spread constraints", cause: byAny | byEviction}
	labelMissing         = reason{text: "node(s) didn't match pod topology spread constraints (missing required label)", cause: byLabels}
)

// companyLocked looks around for p.
func (c *cache) companyLocked(p *podInfo) *podAffinity {
	siblings := c.siblingsLocked(p)
	if siblings == nil && p.podTerms.empty() && len(p.spreads) == 0 && len(c.social) == 0 && len(c.nominated) == 0 {
		return nil
	}
	w := &podAffinity{
		p: p, siblings: siblings, refusedByExisting: make(domains[int]), avoided: make(map[domain]int), wanted: make(map[domain]int), affinityScores: make(domains[int64]),
	}
	own := c.namespaceLabels(p.pod.Namespace)
	for q, node := range c.social {
		w.asked(q, c.nodes[node].node, own, 1)
	}
	if !p.podTerms.empty() {
		for _, n := range c.order {
			for _, q := range n.pods {
				w.meet(q, n.node, c.namespaceLabels, 1)
			}
		}
	}
	for i := range p.spreads {
		w.spread = append(w.spread, c.countLocked(p, &p.spreads[i]))
	}
	return w
}

// asked notes what q, which is on node, says of p, whose namespace has the labels own. It
// counts for by: 1, or -1 to take back that it was noted.
func (w *podAffinity) asked(q *podInfo, node *corev1.Node, own labels.Set, by int) {
	if node == nil {
		return
	}
	each := func(list []term, f func(t *term, d domain)) {
		for i := range list {
			if d, ok := domainOf(node, list[i].key); ok && list[i].matches(w.p.pod, own) {
				f(&list[i], d)
			}
		}
	}
	each(q.podTerms.antiAffinityTerms, func(_ *term, d domain) { w.refusedByExisting.set(d, func(n int) int { return n + by }) })
	each(q.podTerms.affinityTerms, func(_ *term, d domain) { w.addScore(d, hardPodAffinityWeight*int64(by)) })
	each(q.podTerms.preferredPodTerms, func(t *term, d domain) { w.addScore(d, t.weight*int64(by)) })
}

func (w *podAffinity) addScore(d domain, weight int64) {
	w.affinityScores.set(d, func(n int64) int64 { return n + weight })
}

// meet counts by for p's terms that match q, which is on node: 1 adds q, -1 removes it.
func (w *podAffinity) meet(q *podInfo, node *corev1.Node, namespace func(string) labels.Set, by int) {
	its := namespace(q.pod.Namespace)
	for i := range w.p.podTerms.antiAffinityTerms {
		t := &w.p.podTerms.antiAffinityTerms[i]
		if d, ok := domainOf(node, t.key); ok && t.matches(q.pod, its) {
			w.avoided[d] += by
		}
	}
	for i := range w.p.podTerms.preferredPodTerms {
		t := &w.p.podTerms.preferredPodTerms[i]
		if d, ok := domainOf(node, t.key); ok && t.matches(q.pod, its) {
			w.addScore(d, t.weight*int64(by))
		}
	}
	if !matchesAll(w.p.podTerms.affinityTerms, q.pod, its) {
		return
	}
	for i := range w.p.podTerms.affinityTerms {
		if d, ok := domainOf(node, w.p.podTerms.affinityTerms[i].key); ok {
			if w.wanted[d] += by; w.wanted[d] == 0 {
				delete(w.wanted, d)
			}
		}
	}
}

func matchesAll(list []term, pod *corev1.Pod, namespace labels.Set) bool {
	for i := range list {
		if !list[i].matches(pod, namespace) {
			return false
		}
	}
	return len(list) > 0
}

// countLocked counts the pods that s selects.
func (c *cache) countLocked(p *podInfo, s *spread) spreading {
	out := spreading{spread: s, pods: make(map[string]int)}
	for _, n := range c.order {
		if !s.counts(p, n.node) {
			continue
		}
		v := n.node.Labels[s.key]
		out.pods[v] += 0 // it is a domain, though nobody may be in it
		for _, q := range n.pods {
			if s.selects(p, q) {
				out.pods[v]++
			}
		}
	}
	if len(out.pods) >= s.least {
		out.fewest = math.MaxInt
		for _, n := range out.pods {
			out.fewest = min(out.fewest, n)
		}
	}
	return out
}

// selects tells whether q is among the pods that p is spread among.
func (s *spread) selects(p, q *podInfo) bool {
	return q.pod.Namespace == p.pod.Namespace && q.pod.DeletionTimestamp == nil && s.selector.Matches(labels.Set(q.pod.Labels))
}

// counts tells whether a node is among those that p is spread over: it has the labels of
// all spreads that are as hard as s.
func (s *spread) counts(p *podInfo, node *corev1.Node) bool {
	for i := range p.spreads {
		if _, ok := node.Labels[p.spreads[i].key]; !ok && p.spreads[i].hard == s.hard {
			return false
		}
	}
	if s.honorAffinity && p.hasNodeAffinity {
		if ok, err := p.affinity.Match(node); err != nil || !ok {
			return false
		}
	}
	return !s.honorTaints || untolerated(&p.pod.Spec, node.Spec.Taints) == nil
}

// allows tells whether p may be on node, and counts in why what keeps it away.
func (w *podAffinity) allows(node *corev1.Node, own labels.Set, why map[reason]int) bool {
	if w == nil {
		return true
	}
	r, ok := w.rejects(node, own)
	if ok {
		why[r]++
	}
	return !ok
}

// rejects returns why p may not be on node, if it may not.
func (w *podAffinity) rejects(node *corev1.Node, own labels.Set) (r reason, ok bool) {
	for i := range w.spread {
		s := &w.spread[i]
		if !s.hard {
			continue
		}
		v, has := node.Labels[s.key]
		if !has {
			return labelMissing, true
		}
		if s.pods[v]+s.self-s.fewest > s.most {
			return skewTooLarge, true
		}
	}
	if !w.affinityMet(node, own) {
		return affinityUnmet, true
	}
	for i := range w.p.podTerms.antiAffinityTerms {
		if d, has := domainOf(node, w.p.podTerms.antiAffinityTerms[i].key); has && w.avoided[d] > 0 {
			return antiAffinityConflict, true
		}
	}
	for terms := range w.refusedByExisting.of(node) {
		if terms > 0 {
			return refusedByExisting, true
		}
	}
	return reason{}, false
}

// affinityMet tells whether node satisfies p's required affinity terms. The first pod of a
// group whose terms match the group itself may be anywhere.
func (w *podAffinity) affinityMet(node *corev1.Node, own labels.Set) bool {
	affinityTerms := w.p.podTerms.affinityTerms
	all := true
	for i := range affinityTerms {
		d, has := domainOf(node, affinityTerms[i].key)
		if !has {
			return false
		}
		all = all && w.wanted[d] > 0
	}
	return all || len(w.wanted) == 0 && matchesAll(affinityTerms, w.p.pod, own)
}

// affinityScore is the sum of the weights of preferred terms, of p and of existing pods, for node.
func (w *podAffinity) affinityScore(node *corev1.Node) int64 {
	if w == nil {
		return 0
	}
	var sum int64
	for n := range w.affinityScores.of(node) {
		sum += n
	}
	return sum
}

// spreadScore is how many pods node's domains have of those that p prefers to be spread
// among; domains count for less if there are few of them. ok is false if node lacks one of
// the labels.
func (w *podAffinity) spreadScore(node *corev1.Node) (n float64, ok bool) {
	switch {
	case w == nil:
		return 0, true
	case w.siblings != nil:
		return w.siblings.spreadScore(node), true
	}
	for i := range w.spread {
		s := &w.spread[i]
		if s.hard {
			continue
		}
		v, has := node.Labels[s.key]
		if !has {
			return 0, false
		}
		n += float64(s.pods[v])*math.Log(float64(len(s.pods)+2)) + float64(s.most-1)
	}
	return n, true
}
