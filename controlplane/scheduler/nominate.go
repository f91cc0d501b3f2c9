package scheduler

// Nominations: which pods have been promised a node, from which others are removed.

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// A nomination says that a pod without a node will get this one. The node's room counts
// as taken for pods of equal or lower priority.
type nomination struct {
	p    *podInfo
	node string
	// victims are the pods that this scheduler removes for p, until they are gone from the
	// node. It does not know those that a scheduler before it removed.
	victims map[podKey]bool
	seen    bool // the API has told of it
}

func (p *podInfo) priority() int32 { return corev1helpers.PodPriority(p.pod) }

// name is the pod's, without its UID.
func (p *podInfo) name() types.NamespacedName {
	return types.NamespacedName{Namespace: p.pod.Namespace, Name: p.pod.Name}
}

// nominateLocked notes that p will get node. It ends another nomination of p.
func (c *cache) nominateLocked(p *podInfo, node string, victims map[podKey]bool) {
	k := keyOf(p.pod)
	c.endLocked(k)
	n := &nomination{p: p, node: node, victims: victims}
	c.nominated[k] = n
	if c.claims[node] == nil {
		c.claims[node] = make(map[podKey]*nomination)
	}
	c.claims[node][k] = n
}

// endLocked ends the nomination of a pod, if it has one.
func (c *cache) endLocked(k podKey) {
	n := c.nominated[k]
	if n == nil {
		return
	}
	delete(c.nominated, k)
	delete(c.claims[n.node], k)
	if len(c.claims[n.node]) == 0 {
		delete(c.claims, n.node)
	}
}

// endNomination ends the nomination of a pod that is gone or no longer to be scheduled.
func (c *cache) endNomination(k podKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(k)
}

// nominationOf is the node that a pod has been promised; empty if none.
func (c *cache) nominationOf(k podKey) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nominated[k]; n != nil {
		return n.node
	}
	return ""
}

// pending notes a pod without a node as the API has it. What its status says of a
// nomination counts, unless the scheduler has decided since what the API does not tell yet. before is nil if the pod is new.
func (c *cache) pending(before, pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, node := keyOf(pod), pod.Status.NominatedNodeName
	have := c.nominated[k]
	switch {
	case have == nil && node == "":
	case have == nil:
		if before == nil || before.Status.NominatedNodeName != node {
			c.nominateLocked(newPodInfo(pod), node, nil)
			c.nominated[k].seen = true
		}
	case have.node == node:
		have.seen = true
		have.p = newPodInfo(pod)
	case have.seen && node == "":
		c.endLocked(k)
	case have.seen:
		c.nominateLocked(newPodInfo(pod), node, nil)
		c.nominated[k].seen = true
	}
}

// keepVictim notes that victim stays, as it could not be removed for the pod k.
func (c *cache) keepVictim(k, victim podKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nominated[k]; n != nil {
		delete(n.victims, victim)
	}
}

// rivalsLocked are the pods that have been promised the node and that p may not push
// aside: those of equal or higher priority.
func (c *cache) rivalsLocked(p *podInfo, node string) []*podInfo {
	var out []*podInfo
	for k, n := range c.claims[node] {
		if n.p.priority() >= p.priority() && k != keyOf(p.pod) {
			out = append(out, n.p)
		}
	}
	return out
}

// outrankLocked ends the nominations to the node of pods with a lower priority than p has,
// and returns those pods.
func (c *cache) outrankLocked(p *podInfo, node string) []types.NamespacedName {
	var out []types.NamespacedName
	for _, k := range slices.Collect(maps.Keys(c.claims[node])) {
		if n := c.nominated[k]; n.p.priority() < p.priority() {
			c.endLocked(k)
			out = append(out, n.p.name())
		}
	}
	return out
}

// takesLocked tells whether node n can take p, whose namespace has the labels own, beside
// the pods that have been promised it. It counts in why what keeps p away.
func (c *cache) takesLocked(p *podInfo, n *nodeInfo, around *podAffinity, own labels.Set, why map[reason]int) bool {
	if len(c.claims) > 0 {
		if rivals := c.rivalsLocked(p, n.node.Name); len(rivals) > 0 {
			t := c.tryLocked(p, n, around)
			defer t.end()
			return t.fits(rivals, why)
		}
	}
	return filter(p, n, why) && around.allows(n.node, own, why)
}

// promisedLocked places p on the node that it has been promised, if that can take it now.
func (c *cache) promisedLocked(p *podInfo) (node string, ok bool) {
	nom := c.nominated[keyOf(p.pod)]
	if nom == nil {
		return "", false
	}
	n := c.nodes[nom.node]
	if n == nil || n.node == nil || !c.takesLocked(p, n, c.companyLocked(p), c.namespaceLabels(p.pod.Namespace), map[reason]int{}) {
		return "", false
	}
	c.assumeLocked(p, nom.node)
	return nom.node, true
}
