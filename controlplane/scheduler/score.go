package scheduler

// Score: which of the nodes that can take a pod should.

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

func resourceQuantity(s string) resource.Quantity { return resource.MustParse(s) }

// Weights of what is scored, each of which runs from 0 to 100. They are those of
// Kubernetes for the plugins that do the same.
const (
	fullScore         = 100
	weightRoom        = 1
	weightAffinity    = 2
	weightTaints      = 3
	weightPodAffinity = 2
	weightSpread      = 2
)

// A candidate is a node that can take a pod.
type candidate struct {
	node             *nodeInfo
	room             int64 // 0 to 100: what would be left
	affinity, taints int64 // to be seen relative to the others', as those below
	podAffinityScore int64
	spreadScore      float64
	spread           bool // spreadScore is known
}

// best returns the node to bind p to, and fills in what it finds about each. Of
// equals the first wins; the caller rotates the order.
func best(p *podInfo, around *podAffinity, fits []candidate) *nodeInfo {
	var preferred *nodeaffinity.PreferredSchedulingTerms
	if a := p.pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
		// A term that does not parse prefers nothing; validation has refused it.
		preferred, _ = nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	var maxAffinity, maxTaints int64
	for i := range fits {
		c := &fits[i]
		c.room, c.taints = left(p, c.node), avoided(p, c.node.node)
		if preferred != nil {
			c.affinity = preferred.Score(c.node.node)
		}
		maxAffinity, maxTaints = max(maxAffinity, c.affinity), max(maxTaints, c.taints)
		c.podAffinityScore = around.affinityScore(c.node.node)
		c.spreadScore, c.spread = around.spreadScore(c.node.node)
	}
	scoreRange := newScoreRange(fits)
	var winner *nodeInfo
	var high int64 = -1
	for i := range fits {
		c := &fits[i]
		s := weightRoom*c.room + weightAffinity*share(c.affinity, maxAffinity) + weightTaints*(fullScore-share(c.taints, maxTaints)) + scoreRange.score(c)
		if s > high {
			winner, high = c.node, s
		}
	}
	return winner
}

// A scoreRange has the bounds of the candidates' affinity and spread scores.
type scoreRange struct {
	minPodAffinity, maxPodAffinity int64
	minSpread, maxSpread           float64
}

func newScoreRange(fits []candidate) scoreRange {
	s := scoreRange{minPodAffinity: math.MaxInt64, maxPodAffinity: math.MinInt64, minSpread: math.Inf(1), maxSpread: math.Inf(-1)}
	for i := range fits {
		c := &fits[i]
		s.minPodAffinity, s.maxPodAffinity = min(s.minPodAffinity, c.podAffinityScore), max(s.maxPodAffinity, c.podAffinityScore)
		if c.spread {
			s.minSpread, s.maxSpread = min(s.minSpread, c.spreadScore), max(s.maxSpread, c.spreadScore)
		}
	}
	return s
}

// score is the part of c's score for pod affinity and for spreading. If all candidates are
// equal in one of them that counts for none.
func (s *scoreRange) score(c *candidate) int64 {
	n := weightPodAffinity * share(c.podAffinityScore-s.minPodAffinity, s.maxPodAffinity-s.minPodAffinity)
	if c.spread && s.maxSpread > s.minSpread {
		n += weightSpread * int64(fullScore*(s.maxSpread+s.minSpread-c.spreadScore)/s.maxSpread)
	}
	return n
}

func share(n, of int64) int64 {
	if of <= 0 {
		return 0
	}
	return n * fullScore / of
}

// left is how much of a node's cpu and memory would be left with p on it.
func left(p *podInfo, n *nodeInfo) int64 {
	var sum, kinds int64
	add := func(total, taken int64) {
		if total <= 0 {
			return
		}
		kinds++
		if left := total - taken; left > 0 {
			sum += share(left, total)
		}
	}
	add(n.allocatable.cpu, n.usual.cpu+p.usual.cpu)
	add(n.allocatable.memory, n.usual.memory+p.usual.memory)
	if kinds == 0 {
		return 0
	}
	return sum / kinds
}

// avoided counts the taints that would rather not have p.
func avoided(p *podInfo, node *corev1.Node) int64 {
	var n int64
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(&p.pod.Spec, t) {
			n++
		}
	}
	return n
}

// enough is how many nodes that can take a pod are looked for among total. In
// a large cluster the best of some is as good as the best of all.
func enough(total int) int {
	const least = 100
	if total <= least {
		return total
	}
	percent := max(50-total/125, 5)
	return max(total*percent/100, least)
}
