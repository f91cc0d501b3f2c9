package scheduler

// Filter: whether a node can take a pod, as a pure function.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// most is more than any node has of a resource: a pod that asks for as much fits nowhere.
// The sum of 8,000 such pods on a node does not overflow.
const most = 1 << 50

// amounts are quantities of resources: thousandths of a core for cpu, whole units
// for all else.
type amounts struct {
	cpu, memory int64
	other       map[corev1.ResourceName]int64
}

// amountsOf counts what l has, up to limit of each.
func amountsOf(l corev1.ResourceList, limit int64) amounts {
	a := amounts{other: make(map[corev1.ResourceName]int64, len(l))}
	for name, q := range l {
		n := limit // beyond it the methods of q may overflow
		switch {
		case q.CmpInt64(limit) > 0:
		case name == corev1.ResourceCPU && q.CmpInt64(limit/1000) > 0:
		case name == corev1.ResourceCPU:
			n = q.MilliValue()
		default:
			n = q.Value()
		}
		switch name {
		case corev1.ResourceCPU:
			a.cpu = n
		case corev1.ResourceMemory:
			a.memory = n
		default:
			a.other[name] = n
		}
	}
	return a
}

// of is the amount of one resource.
func (a *amounts) of(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return a.cpu
	case corev1.ResourceMemory:
		return a.memory
	}
	return a.other[name]
}

func (a *amounts) add(b *amounts, sign int64) {
	a.cpu += sign * b.cpu
	a.memory += sign * b.memory
	for name, n := range b.other {
		if a.other == nil {
			a.other = map[corev1.ResourceName]int64{}
		}
		if a.other[name] += sign * n; a.other[name] == 0 {
			delete(a.other, name)
		}
	}
}

// A demand is what a pod asks of one resource.
type demand struct {
	name   corev1.ResourceName
	amount int64
	short  reason // if there is not as much
}

// demandsOf lists what is asked for, by name.
func demandsOf(a *amounts) []demand {
	var out []demand
	add := func(name corev1.ResourceName, n int64) {
		if n > 0 && name != corev1.ResourcePods {
			out = append(out, demand{name, n, reason{text: "Insufficient " + string(name), cause: byRoom | byEviction}})
		}
	}
	add(corev1.ResourceCPU, a.cpu)
	add(corev1.ResourceMemory, a.memory)
	for name, n := range a.other {
		add(name, n)
	}
	slices.SortFunc(out, func(a, b demand) int { return cmp.Compare(a.name, b.name) })
	return out
}

// A cause is a set of things that can keep a pod off a node, and that can change.
type cause uint8

const (
	byTaints   cause = 1 << iota // the node's taints, and whether it is cordoned
	byLabels                     // its labels
	byRoom                       // what is left of it
	byPods                       // the pods on it and around, and their labels
	byEviction                   // nothing by itself: pods on the node could be removed

	byAny = byTaints | byLabels | byRoom | byPods
)

// A reason is why a node cannot take a pod. It is put into words only once all
// nodes have been looked at.
type reason struct {
	text  string
	taint struct{ key, value string } // which, if it is one
	cause cause
}

func (r reason) String() string {
	if r.taint.key == "" {
		return r.text
	}
	return fmt.Sprintf("%s {%s: %s}", r.text, r.taint.key, r.taint.value)
}

var (
	cordoned  = reason{text: "node(s) were unschedulable", cause: byTaints}
	elsewhere = reason{text: "node(s) didn't match Pod's node affinity/selector", cause: byLabels}
	noPorts   = reason{text: "node(s) didn't have free ports for the requested pod ports", cause: byRoom | byEviction}
	tooMany   = reason{text: "Too many pods", cause: byRoom | byEviction}
)

func repelled(t *corev1.Taint) reason {
	r := reason{text: "node(s) had untolerated taint", cause: byTaints}
	r.taint.key, r.taint.value = t.Key, t.Value
	return r
}

// A hostPort is a port that a pod takes from its node.
type hostPort struct {
	protocol corev1.Protocol
	ip       string // 0.0.0.0 means every address
	port     int32
}

const anyIP = "0.0.0.0"

// hostPorts are the ports of a pod. Of each there is also one with the address "", which says
// that the port is taken at some address.
type hostPorts map[hostPort]bool

func (ps hostPorts) add(p hostPort) { ps[p], ps[hostPort{p.protocol, "", p.port}] = true, true }

// clashes tells whether a pod with these ports cannot be where p is taken.
func (ps hostPorts) clashes(p hostPort) bool {
	return ps[p] || ps[hostPort{p.protocol, anyIP, p.port}] || p.ip == anyIP && ps[hostPort{p.protocol, "", p.port}]
}

// A podInfo is what scheduling needs to know of a pod.
type podInfo struct {
	pod      *corev1.Pod
	requests amounts
	demands  []demand // the same, as a list
	// usual is requests with a guess where a container asks for nothing, so that
	// pods without requests spread as well.
	usual amounts
	ports hostPorts
	// hasNodeAffinity says that affinity, which has the selector as well, is not empty.
	hasNodeAffinity bool
	affinity        nodeaffinity.RequiredNodeAffinity
	podTerms        podTerms
	spreads         []spread
	over            string // why it is not looked at: it asks for too much; empty if it is
	only            string // the one node that it can be on by name, as daemons have it; empty means any
}

// What a container without requests is guessed to use, for choosing only.
var guess = corev1.ResourceList{
	corev1.ResourceCPU:    resourceQuantity("100m"),
	corev1.ResourceMemory: resourceQuantity("200Mi"),
}

func newPodInfo(pod *corev1.Pod) *podInfo {
	// Resources count as the node has them in force, so that a pod being resized
	// is not underestimated.
	opts := resourcehelper.PodResourcesOptions{UseStatusResources: true}
	p := &podInfo{pod: pod, requests: amountsOf(resourcehelper.PodRequests(pod, opts), most), ports: hostPortsOf(&pod.Spec)}
	p.demands = demandsOf(&p.requests)
	opts.NonMissingContainerRequests = guess
	p.usual = amountsOf(resourcehelper.PodRequests(pod, opts), most)
	if p.asksTooMuch() {
		// If it is on a node already, its affinity means nothing to others.
		p.over = fmt.Sprintf("the pod has more than %d tolerations, node labels, host ports and resources, or an affinity of more than %d bytes: ask for less", maxAsked, maxAffinity)
		return p
	}
	a := pod.Spec.Affinity
	p.affinity = nodeaffinity.GetRequiredNodeAffinity(pod)
	p.hasNodeAffinity = len(pod.Spec.NodeSelector) > 0 ||
		a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
	p.only = onlyNode(a)
	p.podTerms, p.spreads = podTermsOf(pod), spreadsOf(pod)
	if p.podTerms.over || len(pod.Spec.TopologySpreadConstraints) > maxTerms {
		p.over = fmt.Sprintf("the pod has more than %d pod affinity terms or topology spread constraints of a kind: ask for less", maxTerms)
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		p.over = "the pod has resource claims, and nobody allocates devices here: leave resourceClaims out"
	}
	return p
}

// onlyNode is the name of the only node that a requires; empty if it is not as simple.
func onlyNode(a *corev1.Affinity) string {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchFields) != 1 {
		return ""
	}
	f := terms[0].MatchFields[0]
	if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 {
		return ""
	}
	return f.Values[0]
}

// hostPortsOf returns the ports that a pod takes: those of its containers, and of
// the init containers that stay.
func hostPortsOf(spec *corev1.PodSpec) hostPorts {
	var out hostPorts
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 || len(out) > 2*maxAsked {
				continue
			}
			if out == nil {
				out = make(hostPorts)
			}
			hp := hostPort{protocol: p.Protocol, ip: p.HostIP, port: p.HostPort}
			if hp.protocol == "" {
				hp.protocol = corev1.ProtocolTCP
			}
			if hp.ip == "" || hp.ip == "::" {
				hp.ip = anyIP
			}
			out.add(hp)
		}
	}
	for i := range spec.Containers {
		add(&spec.Containers[i])
	}
	for i := range spec.InitContainers {
		if r := spec.InitContainers[i].RestartPolicy; r != nil && *r == corev1.ContainerRestartPolicyAlways {
			add(&spec.InitContainers[i])
		}
	}
	return out
}

// A nodeInfo is a node and what is asked of it.
type nodeInfo struct {
	node        *corev1.Node // nil while only pods of it are known
	allocatable amounts
	pods        map[podKey]*podInfo
	requested   amounts
	usual       amounts
}

// filter tells whether the node can take the pod, and counts in why what keeps it
// from that. The first kind of reason is the only one told, but for resources, of
// which all that are short are.
func filter(p *podInfo, n *nodeInfo, why map[reason]int) bool {
	spec := &p.pod.Spec
	if n.node.Spec.Unschedulable && !tolerates(spec, &corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	}) {
		why[cordoned]++
		return false
	}
	if t := untolerated(spec, n.node.Spec.Taints); t != nil {
		why[repelled(t)]++
		return false
	}
	if p.hasNodeAffinity {
		if ok, err := p.affinity.Match(n.node); err != nil || !ok {
			why[elsewhere]++
			return false
		}
	}
	if !portsFree(p, n) {
		why[noPorts]++
		return false
	}
	return !short(p, n, why)
}

func tolerates(spec *corev1.PodSpec, t *corev1.Taint) bool {
	return corev1helpers.TolerationsTolerateTaint(klog.Logger{}, spec.Tolerations, t, true)
}

// untolerated returns the first taint that keeps the pod away; nil if none does.
func untolerated(spec *corev1.PodSpec, taints []corev1.Taint) *corev1.Taint {
	for i := range taints {
		t := &taints[i]
		if (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) && !tolerates(spec, t) {
			return t
		}
	}
	return nil
}

func portsFree(p *podInfo, n *nodeInfo) bool {
	if len(p.ports) == 0 {
		return true
	}
	for _, other := range n.pods {
		for have := range other.ports {
			if have.ip != "" && p.ports.clashes(have) {
				return false
			}
		}
	}
	return true
}

// short counts which resources of the node do not suffice, and tells whether any
// does not.
func short(p *podInfo, n *nodeInfo, why map[reason]int) bool {
	short := false
	if int64(len(n.pods))+1 > n.allocatable.of(corev1.ResourcePods) {
		why[tooMany]++
		short = true
	}
	for i := range p.demands {
		d := &p.demands[i]
		has := n.allocatable.of(d.name)
		if d.amount <= has-n.requested.of(d.name) {
			continue
		}
		r := d.short
		if d.amount > has {
			r.cause &^= byEviction // an empty node would be too small
		}
		why[r]++
		short = true
	}
	return short
}

// noNodes is what a pod is told where there are no nodes at all.
const noNodes = "no nodes available to schedule pods"

// explain says, as kubectl describe shows it, why none of nodes can take a pod, and
// what would have to change.
func explain(nodes int, why map[reason]int) (string, cause) {
	if nodes == 0 {
		return noNodes, byAny
	}
	var needs cause
	counts := make(map[string]int, len(why))
	for r, count := range why {
		counts[r.String()] += count
		needs |= r.cause
	}
	return unavailable(nodes, counts), needs
}

// unavailable is a list of what keeps a pod off how many of nodes.
func unavailable(nodes int, counts map[string]int) string {
	parts := make([]string, 0, len(counts))
	for what, count := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", count, what))
	}
	slices.Sort(parts)
	return fmt.Sprintf("0/%d nodes are available: %s.", nodes, strings.Join(parts, ", "))
}
