package scheduler

// Victims: which pods have to leave a node, and what their budgets say.

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policylisters "k8s.io/client-go/listers/policy/v1"
)

// lookLocked finds the fewest pods that would have to leave n for p to fit. It returns nil
// if it does not help that all of lower priority do, and notes why.
func (s *search) lookLocked(n *nodeInfo) *offer {
	lower, enough := s.lowerLocked(n)
	switch {
	case len(lower) == 0:
		s.why[noVictims]++
		return nil
	case len(lower) > maxVictims:
		s.why[manyVictims]++
		return nil
	case !enough:
		return nil
	}
	t := s.tryLocked(s.p, n, s.around)
	defer t.end()
	for _, v := range lower {
		s.spend(v)
		t.remove(v)
	}
	rivals := s.rivalsLocked(s.p, n.node.Name)
	clear(s.reasons)
	if !t.fits(rivals, s.reasons) {
		s.noteReasons()
		return nil
	}
	slices.SortFunc(lower, s.moreImportant)
	violating, others := s.budgets.split(lower, &s.work)
	out := &offer{node: n}
	for i, list := range [][]*podInfo{violating, others} {
		for _, v := range list {
			s.spend(v)
			if t.add(v); t.fits(rivals, s.reasons) {
				continue
			}
			t.remove(v)
			out.victims = append(out.victims, v)
			if i == 0 {
				out.violations++
			}
		}
	}
	if len(out.victims) == 0 {
		return nil
	}
	slices.SortFunc(out.victims, s.moreImportant)
	return out
}

// lowerLocked returns the pods on n that p may push aside. enough is false, and noted, if
// all their resources together are not.
func (s *search) lowerLocked(n *nodeInfo) (lower []*podInfo, enough bool) {
	var freed amounts
	priority := s.p.priority()
	for _, q := range n.pods {
		// A mirror's removal frees nothing: its node runs the static pod on, and makes it again.
		if _, mirror := q.pod.Annotations[corev1.MirrorPodAnnotationKey]; q.priority() < priority && !mirror {
			lower = append(lower, q)
			freed.add(&q.requests, 1)
		}
	}
	enough = true
	for i := range s.p.demands {
		d := &s.p.demands[i]
		if len(lower) > 0 && d.amount > n.allocatable.of(d.name)-n.requested.of(d.name)+freed.of(d.name) {
			s.why[d.short.text]++
			enough = false
		}
	}
	return lower, enough
}

func (s *search) noteReasons() {
	for r, count := range s.reasons {
		s.why[r.String()] += count
	}
}

// spend takes off what it costs to look at the node without v, or with it again.
func (s *search) spend(v *podInfo) {
	w := &s.p.podTerms
	s.work -= 1 + len(w.affinityTerms) + len(w.antiAffinityTerms) + len(w.preferredPodTerms) + len(s.p.spreads) +
		len(v.podTerms.affinityTerms) + len(v.podTerms.antiAffinityTerms) + len(v.podTerms.preferredPodTerms)
}

// budgets are the disruption budgets as one search sees them.
type budgets struct {
	lister policylisters.PodDisruptionBudgetLister
	in     map[string][]budget // by namespace, those that were asked for
}

// A budget is a disruption budget, or rather what it allows still.
type budget struct {
	selector  labels.Selector
	allowed   int32
	disrupted map[string]metav1.Time // pods whose removal it has counted already
}

func newBudgets(l policylisters.PodDisruptionBudgetLister) *budgets {
	return &budgets{lister: l, in: make(map[string][]budget)}
}

// of returns the budgets of a namespace. It takes off work what that costs.
func (b *budgets) of(namespace string, work *int) []budget {
	if list, ok := b.in[namespace]; ok {
		return list
	}
	var out []budget
	// The lister reads a cache, which does not fail.
	list, _ := b.lister.PodDisruptionBudgets(namespace).List(labels.Everything())
	for _, pdb := range list {
		*work -= 10
		if bud, ok := newBudget(pdb); ok {
			out = append(out, bud)
		}
	}
	b.in[namespace] = out
	return out
}

// newBudget returns what a search needs of pdb; ok is false if it is about no pods.
func newBudget(pdb *policyv1.PodDisruptionBudget) (b budget, ok bool) {
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil || selector.Empty() {
		return budget{}, false // as in kube-scheduler
	}
	return budget{selector: selector, allowed: pdb.Status.DisruptionsAllowed, disrupted: pdb.Status.DisruptedPods}, true
}

// split tells those of pods apart whose removal a budget does not allow, if they are
// removed in this order. It takes off work what that costs.
func (b *budgets) split(pods []*podInfo, work *int) (violating, others []*podInfo) {
	taken := make(map[string][]int32) // of each budget, by namespace
	for _, p := range pods {
		violates := false
		list := b.of(p.pod.Namespace, work)
		*work -= len(list)
		used := taken[p.pod.Namespace]
		if used == nil {
			used = make([]int32, len(list))
			taken[p.pod.Namespace] = used
		}
		if len(p.pod.Labels) == 0 {
			list = nil // in kube-scheduler no budget is about a pod without labels
		}
		for i := range list {
			if _, counted := list[i].disrupted[p.pod.Name]; counted || !list[i].selector.Matches(labels.Set(p.pod.Labels)) {
				continue
			}
			used[i]++
			violates = violates || used[i] > list[i].allowed
		}
		if violates {
			violating = append(violating, p)
		} else {
			others = append(others, p)
		}
	}
	return violating, others
}
