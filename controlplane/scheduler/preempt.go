package scheduler

// Preempt: the search for a node from which pods of lower priority could be removed to
// make room for a pod.

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds of one search.
const (
	// A search ends when it has found so many nodes, or this share of those where it may
	// help, whichever is more, as in Kubernetes.
	enoughNodes, enoughPercent = 100, 10
	// maxVictims is how many pods of lower priority a node may have to be looked at.
	maxVictims = 1000
	// maxWork is how many comparisons of pods a search makes before it takes the best that
	// it has found. It is some tens of milliseconds.
	maxWork = 200_000
)

// What the preemption part of a message says, in kube-scheduler's words, and in our own
// where that has no such bound.
const (
	notHelpful  = "Preemption is not helpful for scheduling"
	noVictims   = "No preemption victims found for incoming pod"
	manyVictims = "node(s) had too many pods of lower priority to choose from"
	notLooked   = "node(s) were not looked at"
	waits       = "not eligible due to a terminating pod on the nominated node."
	never       = "not eligible due to preemptionPolicy=Never."
)

// A preemption is what a search has found.
type preemption struct {
	node     string                 // the node to nominate; empty if there is none
	victims  []*corev1.Pod          // on it, the most important first
	outranks []types.NamespacedName // pods whose nomination to it has ended
	why      string                 // if there is none, why
	room     bool                   // there is none, for the pod fits without
	gone     bool                   // or it needs none any more
	took     time.Duration          // while nobody else could use the cache
}

// An offer is a node with the pods to be removed from it.
type offer struct {
	node       *nodeInfo
	victims    []*podInfo // the most important first
	violations int        // victims whose budget does not allow it
}

// A search is one look for a node for p.
type search struct {
	*cache
	p       *podInfo
	own     labels.Set // of p's namespace
	around  *podAffinity
	budgets *budgets
	now     time.Time // when pods without a start time count as started
	work    int       // what is left of maxWork
	why     map[string]int
	reasons map[reason]int // of the node that is looked at
}

// preempt looks for a node for p, which fits nowhere, and nominates it.
func (c *cache) preempt(p *podInfo, b *budgets) (out preemption) {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	defer func() { out.took = time.Since(began) }()
	if _, placed := c.pods[keyOf(p.pod)]; placed {
		return preemption{gone: true}
	}
	s := &search{
		cache: c, p: p, own: c.namespaceLabels(p.pod.Namespace), around: c.companyLocked(p), budgets: b, now: began, work: maxWork,
		why: make(map[string]int), reasons: make(map[reason]int),
	}
	if s.waitsLocked() {
		return preemption{why: waits}
	}
	nodes, room := s.helpfulLocked()
	if room {
		return preemption{room: true}
	}
	o := s.bestLocked(nodes)
	if o == nil {
		c.endLocked(keyOf(p.pod))
		return preemption{why: unavailable(len(c.order), s.why)}
	}
	name, victims := o.node.node.Name, make(map[podKey]bool, len(o.victims))
	out = preemption{node: name, outranks: c.outrankLocked(p, name)}
	for _, v := range o.victims {
		victims[keyOf(v.pod)] = true
		out.victims = append(out.victims, v.pod)
	}
	c.nominateLocked(p, name, victims)
	return out
}

// waitsLocked tells whether pods that were removed for p are still on their way out.
func (s *search) waitsLocked() bool {
	nom := s.nominated[keyOf(s.p.pod)]
	if nom == nil {
		return false
	}
	n := s.nodes[nom.node]
	if n == nil || n.node == nil {
		return false
	}
	if _, helps := s.refusalLocked(n); !helps {
		return false // it can take p already, or they leave in vain
	}
	for k, q := range n.pods {
		if q.priority() < s.p.priority() && (nom.victims[k] || preempted(q.pod)) {
			return true
		}
	}
	return false
}

// preempted tells whether a pod ends because a scheduler removed it.
func preempted(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// refusalLocked tells whether a node can take p as it is, and else whether that its pods
// go could help.
func (s *search) refusalLocked(n *nodeInfo) (ok, helps bool) {
	clear(s.reasons)
	if s.takesLocked(s.p, n, s.around, s.own, s.reasons) {
		return true, false
	}
	for r := range s.reasons {
		if r.cause&byEviction == 0 {
			return false, false
		}
	}
	return false, true
}

// helpfulLocked returns the nodes where removing pods may help. room means that there is
// one that needs none removed.
func (s *search) helpfulLocked() (nodes []*nodeInfo, room bool) {
	for _, n := range s.order {
		switch ok, helps := s.refusalLocked(n); {
		case ok:
			return nil, true
		case helps:
			nodes = append(nodes, n)
		default:
			s.why[notHelpful]++
		}
	}
	return nodes, false
}

// bestLocked returns the best offer of those nodes, beginning anywhere; nil if there is
// none. An offer that violates no budget ends the search only once there are enough.
func (s *search) bestLocked(nodes []*nodeInfo) *offer {
	if len(nodes) == 0 {
		return nil
	}
	var best *offer
	found, want := 0, min(max(len(nodes)*enoughPercent/100, enoughNodes), len(nodes))
	begin := rand.IntN(len(nodes))
	for i := range nodes {
		if s.work <= 0 {
			s.why[notLooked] += len(nodes) - i
			break
		}
		o := s.lookLocked(nodes[(begin+i)%len(nodes)])
		if o == nil {
			continue
		}
		found++
		if best == nil || s.better(o, best) {
			best = o
		}
		if found >= want && best.violations == 0 {
			break
		}
	}
	return best
}

// better tells whether a is to be chosen before b.
func (s *search) better(a, b *offer) bool {
	return cmp.Or(
		cmp.Compare(a.violations, b.violations),
		cmp.Compare(a.victims[0].priority(), b.victims[0].priority()),
		cmp.Compare(a.sum(), b.sum()),
		cmp.Compare(len(a.victims), len(b.victims)),
		s.earliest(b).Compare(s.earliest(a)),
	) < 0
}

// sum adds up the victims' priorities, none of which counts as negative: many victims of a
// negative priority are not better than few.
func (o *offer) sum() (sum int64) {
	for _, v := range o.victims {
		sum += int64(v.priority()) + math.MaxInt32 + 1
	}
	return sum
}

// earliest is when the first of the victims with the highest priority started.
func (s *search) earliest(o *offer) time.Time {
	first := s.started(o.victims[0])
	for _, v := range o.victims[1:] {
		if t := s.started(v); v.priority() == o.victims[0].priority() && t.Before(first) {
			first = t
		}
	}
	return first
}

// started is when a pod started, which its node says: not before it was made, and not later
// than now.
func (s *search) started(p *podInfo) time.Time {
	t := p.pod.Status.StartTime
	if t == nil || t.After(s.now) || p.pod.CreationTimestamp.After(s.now) {
		return s.now
	}
	if t.Before(&p.pod.CreationTimestamp) {
		return p.pod.CreationTimestamp.Time
	}
	return t.Time
}

// moreImportant orders pods by priority and then by age.
func (s *search) moreImportant(a, b *podInfo) int {
	return cmp.Or(cmp.Compare(b.priority(), a.priority()), s.started(a).Compare(s.started(b)),
		cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name), cmp.Compare(a.pod.UID, b.pod.UID))
}
