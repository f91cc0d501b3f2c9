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
	fullScore      = 100
	weightRoom     = 1
	weightAffinity = 2
	weightTaints   = 3
	weightCompany  = 2
	weightSpread   = 2
)

// A candidate is a node that can take a pod.
type candidate struct {
	node             *nodeInfo
	room             int64 // 0 to 100: what would be left
	affinity, taints int64 // to be seen relative to the others', as those below
	liked            int64
	crowd            float64
	spread           bool // crowd is known
}

// best returns the node to bind p to, and fills in what it finds about each. Of
// equals the first wins; the caller rotates the order.
func best(p *podInfo, around *company, fits []candidate) *nodeInfo {
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
		c.liked = around.likes(c.node.node)
		c.crowd, c.spread = around.crowd(c.node.node)
	}
	sociable := newSociable(fits)
	var winner *nodeInfo
	var high int64 = -1
	for i := range fits {
		c := &fits[i]
		s := weightRoom*c.room + weightAffinity*share(c.affinity, maxAffinity) + weightTaints*(fullScore-share(c.taints, maxTaints)) + sociable.score(c)
		if s > high {
			winner, high = c.node, s
		}
	}
	return winner
}

// sociable is the bounds between which candidates are liked and crowded.
type sociable struct {
	leastLiked, mostLiked     int64
	leastCrowded, mostCrowded float64
}

func newSociable(fits []candidate) sociable {
	s := sociable{leastLiked: math.MaxInt64, mostLiked: math.MinInt64, leastCrowded: math.Inf(1), mostCrowded: math.Inf(-1)}
	for i := range fits {
		c := &fits[i]
		s.leastLiked, s.mostLiked = min(s.leastLiked, c.liked), max(s.mostLiked, c.liked)
		if c.spread {
			s.leastCrowded, s.mostCrowded = min(s.leastCrowded, c.crowd), max(s.mostCrowded, c.crowd)
		}
	}
	return s
}

// score is what c's company counts: the more it is liked, and the less it is crowded. If
// all are alike in one of them it counts for none.
func (s *sociable) score(c *candidate) int64 {
	n := weightCompany * share(c.liked-s.leastLiked, s.mostLiked-s.leastLiked)
	if c.spread && s.mostCrowded > s.leastCrowded {
		n += weightSpread * int64(fullScore*(s.mostCrowded+s.leastCrowded-c.crowd)/s.mostCrowded)
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
