package scheduler

// Cache: the nodes, and the pods on them or on their way to them.

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// A podKey names one incarnation of a pod.
type podKey struct {
	types.NamespacedName
	uid types.UID
}

func keyOf(pod *corev1.Pod) podKey {
	return podKey{types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, pod.UID}
}

// A cache is the picture that decisions are made from.
type cache struct {
	// namespaceLabels returns the labels of a namespace. It must not block.
	namespaceLabels func(namespace string) labels.Set

	mu     sync.Mutex
	nodes  map[string]*nodeInfo
	order  []*nodeInfo // nodes that exist, in the order they came
	next   int         // where in order the next decision begins
	fits   []candidate // of the decision being made
	pods   map[podKey]place
	social map[*podInfo]string // pods on nodes that say something of pods around them, and the node
	zones  map[string]int      // how many nodes of order each zone has

	families families

	nominated map[podKey]*nomination
	claims    map[string]map[podKey]*nomination // the same by node
}

// A place is where a pod is counted. assumed means that we decided so and have
// not yet seen it in the API.
type place struct {
	node    string
	assumed bool
}

func newCache() *cache {
	return &cache{
		nodes: map[string]*nodeInfo{}, pods: map[podKey]place{}, social: map[*podInfo]string{},
		zones: map[string]int{}, families: families{},
		nominated: map[podKey]*nomination{}, claims: map[string]map[podKey]*nomination{},
		namespaceLabels: func(string) labels.Set { return nil },
	}
}

func (c *cache) infoLocked(name string) *nodeInfo {
	n := c.nodes[name]
	if n == nil {
		n = &nodeInfo{pods: map[podKey]*podInfo{}}
		c.nodes[name] = n
	}
	return n
}

// setNode notes a node as it is now.
func (c *cache) setNode(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.infoLocked(node.Name)
	if n.node == nil {
		c.order = append(c.order, n)
	}
	c.countZoneLocked(n.node, -1)
	c.countZoneLocked(node, 1)
	n.node, n.allocatable = node, amountsOf(node.Status.Allocatable, most-1)
}

// countZoneLocked counts a node in its zone: by is 1 or, to take it back, -1. Nil is none.
func (c *cache) countZoneLocked(node *corev1.Node, by int) {
	if node == nil {
		return
	}
	if zone, ok := node.Labels[corev1.LabelTopologyZone]; ok {
		if c.zones[zone] += by; c.zones[zone] == 0 {
			delete(c.zones, zone)
		}
	}
}

// removeNode forgets a node. Pods that are still on it are remembered, in case
// it comes back before they go. Nominations to it end; it returns the pods that had them.
func (c *cache) removeNode(name string) (nominated []types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil || n.node == nil {
		return nil
	}
	for k, nom := range c.claims[name] {
		nominated = append(nominated, nom.p.name())
		delete(c.nominated, k)
	}
	delete(c.claims, name)
	for i, o := range c.order {
		if o == n {
			c.order = append(c.order[:i], c.order[i+1:]...)
			break
		}
	}
	c.countZoneLocked(n.node, -1)
	n.node = nil
	if len(n.pods) == 0 {
		delete(c.nodes, name)
	}
	return nominated
}

// setPod notes a pod that the API says is on a node and needs its place there.
func (c *cache) setPod(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(keyOf(pod))
	c.putLocked(newPodInfo(pod), pod.Spec.NodeName, false)
}

// assumeLocked counts a pod as being on a node from now on.
func (c *cache) assumeLocked(p *podInfo, node string) {
	c.dropLocked(keyOf(p.pod))
	c.putLocked(p, node, true)
}

// forget takes back an assumption that did not come true. A pod that the API
// has since said to be somewhere stays.
func (c *cache) forget(k podKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods[k].assumed {
		c.dropLocked(k)
	}
}

// removePod notes that a pod no longer needs its place. It tells whether it had
// one.
func (c *cache) removePod(k podKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropLocked(k)
}

func (c *cache) putLocked(p *podInfo, node string, assumed bool) {
	k := keyOf(p.pod)
	c.endLocked(k)
	n := c.infoLocked(node)
	n.pods[k] = p
	n.requested.add(&p.requests, 1)
	n.usual.add(&p.usual, 1)
	c.pods[k] = place{node, assumed}
	c.families.count(p.pod, node, 1)
	if !p.podTerms.empty() {
		c.social[p] = node
	}
}

func (c *cache) dropLocked(k podKey) bool {
	at, ok := c.pods[k]
	if !ok {
		return false
	}
	delete(c.pods, k)
	n := c.nodes[at.node]
	p := n.pods[k]
	delete(n.pods, k)
	delete(c.social, p)
	c.families.count(p.pod, at.node, -1)
	n.requested.add(&p.requests, -1)
	n.usual.add(&p.usual, -1)
	if n.node == nil && len(n.pods) == 0 {
		delete(c.nodes, at.node)
	}
	return true
}

// size is how many nodes there are.
func (c *cache) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.order)
}

// has tells whether the pod is counted somewhere already.
func (c *cache) has(k podKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.pods[k]
	return ok
}

// placeOnlyLocked is place for a pod that can be on one node only: the others are not
// looked at.
func (c *cache) placeOnlyLocked(p *podInfo) (node, why string, needs cause) {
	reasons, others := map[reason]int{}, len(c.order)
	if n := c.nodes[p.only]; n != nil && n.node != nil {
		if c.takesLocked(p, n, c.companyLocked(p), c.namespaceLabels(p.pod.Namespace), reasons) {
			c.assumeLocked(p, p.only)
			return p.only, "", 0
		}
		others--
	}
	if others > 0 {
		reasons[elsewhere] = others + reasons[elsewhere]
	}
	why, needs = explain(len(c.order), reasons)
	return "", why, needs
}

// place decides where p goes and counts it there. If it fits nowhere the name is
// empty, why says so, and needs is what would have to change.
func (c *cache) place(p *podInfo) (node, why string, needs cause) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.over != "" {
		return "", p.over, byTaints
	}
	if node, ok := c.promisedLocked(p); ok {
		return node, "", 0
	}
	if p.only != "" {
		return c.placeOnlyLocked(p)
	}
	total := len(c.order)
	want := enough(total)
	c.fits = c.fits[:0]
	reasons := map[reason]int{}
	around, own := c.companyLocked(p), c.namespaceLabels(p.pod.Namespace)
	looked := 0
	for ; looked < total && len(c.fits) < want; looked++ {
		if n := c.order[(c.next+looked)%total]; c.takesLocked(p, n, around, own, reasons) {
			c.fits = append(c.fits, candidate{node: n})
		}
	}
	if len(c.fits) == 0 {
		why, needs = explain(total, reasons)
		return "", why, needs
	}
	n := best(p, around, c.fits)
	// Begin behind the nodes that were looked at, or, if that is all of them,
	// behind the first, so that equals take turns.
	if looked == total {
		looked = 1
	}
	c.next = (c.next + looked) % total
	c.assumeLocked(p, n.node.Name)
	return n.node.Name, "", 0
}
