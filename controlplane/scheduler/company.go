package scheduler

// Company: what the pods that are around mean for one that is to be placed.

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

// company is what pods around mean for p, for one decision. Nil means nothing.
type company struct {
	p       *podInfo
	refused domains[int]   // how many terms of pods there do not want p near
	avoided map[domain]int // how many pods there p does not want near
	wanted  map[domain]int // pods there that p wants near, by its terms' keys; none with 0
	liked   domains[int64]
	spread  []spreading // as p.spreads
	// siblings are those whom p is spread among by default; nil if there are none.
	siblings *siblings
}

// A spreading is how many pods that one of p's spreads selects are in each domain.
type spreading struct {
	*spread
	pods   map[string]int // by value; of nodes that count
	fewest int            // of pods, and 0 if there are not enough domains
}

// hardLike is how much a pod that must have others near it likes them, as in Kubernetes.
const hardLike = 1

var (
	refused = reason{text: "node(s) didn't satisfy existing pods anti-affinity rules", cause: byPods | byLabels | byEviction}
	apart   = reason{text: "node(s) didn't match pod anti-affinity rules", cause: byPods | byLabels | byEviction}
	lonely  = reason{text: "node(s) didn't match pod affinity rules", cause: byPods | byLabels}
	uneven  = reason{text: "node(s) didn't match pod topology spread constraints", cause: byAny | byEviction}
	nowhere = reason{text: "node(s) didn't match pod topology spread constraints (missing required label)", cause: byLabels}
)

// companyLocked looks around for p.
func (c *cache) companyLocked(p *podInfo) *company {
	siblings := c.siblingsLocked(p)
	if siblings == nil && p.wishes.empty() && len(p.spreads) == 0 && len(c.social) == 0 && len(c.nominated) == 0 {
		return nil
	}
	w := &company{
		p: p, siblings: siblings, refused: make(domains[int]), avoided: make(map[domain]int), wanted: make(map[domain]int), liked: make(domains[int64]),
	}
	own := c.namespaceLabels(p.pod.Namespace)
	for q, node := range c.social {
		w.asked(q, c.nodes[node].node, own, 1)
	}
	if !p.wishes.empty() {
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
func (w *company) asked(q *podInfo, node *corev1.Node, own labels.Set, by int) {
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
	each(q.wishes.far, func(_ *term, d domain) { w.refused.set(d, func(n int) int { return n + by }) })
	each(q.wishes.near, func(_ *term, d domain) { w.like(d, hardLike*int64(by)) })
	each(q.wishes.rather, func(t *term, d domain) { w.like(d, t.weight*int64(by)) })
}

func (w *company) like(d domain, weight int64) {
	w.liked.set(d, func(n int64) int64 { return n + weight })
}

// meet notes what p says of q, which is on node. It counts for by: 1, or -1 to take back
// that it was noted.
func (w *company) meet(q *podInfo, node *corev1.Node, namespace func(string) labels.Set, by int) {
	its := namespace(q.pod.Namespace)
	for i := range w.p.wishes.far {
		t := &w.p.wishes.far[i]
		if d, ok := domainOf(node, t.key); ok && t.matches(q.pod, its) {
			w.avoided[d] += by
		}
	}
	for i := range w.p.wishes.rather {
		t := &w.p.wishes.rather[i]
		if d, ok := domainOf(node, t.key); ok && t.matches(q.pod, its) {
			w.like(d, t.weight*int64(by))
		}
	}
	if !matchesAll(w.p.wishes.near, q.pod, its) {
		return
	}
	for i := range w.p.wishes.near {
		if d, ok := domainOf(node, w.p.wishes.near[i].key); ok {
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
	if s.honorAffinity && p.choosy {
		if ok, err := p.affinity.Match(node); err != nil || !ok {
			return false
		}
	}
	return !s.honorTaints || untolerated(&p.pod.Spec, node.Spec.Taints) == nil
}

// allows tells whether p may be on node, and counts in why what keeps it away.
func (w *company) allows(node *corev1.Node, own labels.Set, why map[reason]int) bool {
	if w == nil {
		return true
	}
	r, ok := w.keeps(node, own)
	if ok {
		why[r]++
	}
	return !ok
}

// keeps returns what keeps p away from node, if anything does.
func (w *company) keeps(node *corev1.Node, own labels.Set) (r reason, ok bool) {
	for i := range w.spread {
		s := &w.spread[i]
		if !s.hard {
			continue
		}
		v, has := node.Labels[s.key]
		if !has {
			return nowhere, true
		}
		if s.pods[v]+s.self-s.fewest > s.most {
			return uneven, true
		}
	}
	if !w.together(node, own) {
		return lonely, true
	}
	for i := range w.p.wishes.far {
		if d, has := domainOf(node, w.p.wishes.far[i].key); has && w.avoided[d] > 0 {
			return apart, true
		}
	}
	for terms := range w.refused.of(node) {
		if terms > 0 {
			return refused, true
		}
	}
	return reason{}, false
}

// together tells whether all whom p must have near are near node. The first of a group
// that wants its own kind near may be anywhere.
func (w *company) together(node *corev1.Node, own labels.Set) bool {
	near := w.p.wishes.near
	all := true
	for i := range near {
		d, has := domainOf(node, near[i].key)
		if !has {
			return false
		}
		all = all && w.wanted[d] > 0
	}
	return all || len(w.wanted) == 0 && matchesAll(near, w.p.pod, own)
}

// likes is how much p, and the pods around, would like it to be on node.
func (w *company) likes(node *corev1.Node) int64 {
	if w == nil {
		return 0
	}
	var sum int64
	for n := range w.liked.of(node) {
		sum += n
	}
	return sum
}

// crowd is how many pods node's domains have of those that p would like to be spread
// among; domains count for less if there are few of them. ok is false if node has not all
// labels.
func (w *company) crowd(node *corev1.Node) (n float64, ok bool) {
	switch {
	case w == nil:
		return 0, true
	case w.siblings != nil:
		return w.siblings.crowd(node), true
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
