package scheduler

// Filter: whether a node can take a pod, as a pure function.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// amounts are quantities of resources: thousandths of a core for cpu, whole
// units for all else.
type amounts map[corev1.ResourceName]int64

func amountsOf(l corev1.ResourceList) amounts {
	a := make(amounts, len(l))
	for name, q := range l {
		if name == corev1.ResourceCPU {
			a[name] = q.MilliValue()
		} else {
			a[name] = q.Value()
		}
	}
	return a
}

func (a amounts) add(b amounts, sign int64) {
	for name, n := range b {
		a[name] += sign * n
	}
}

// A hostPort is a port that a pod takes from its node.
type hostPort struct {
	protocol corev1.Protocol
	ip       string // 0.0.0.0 means every address
	port     int32
}

const anyIP = "0.0.0.0"

// clashes tells whether two pods cannot both have their port.
func (p hostPort) clashes(q hostPort) bool {
	return p.port == q.port && p.protocol == q.protocol && (p.ip == q.ip || p.ip == anyIP || q.ip == anyIP)
}

// A podInfo is what scheduling needs to know of a pod.
type podInfo struct {
	pod      *corev1.Pod
	requests amounts
	// usual is requests with a guess where a container asks for nothing, so that
	// pods without requests spread as well.
	usual    amounts
	ports    []hostPort
	affinity nodeaffinity.RequiredNodeAffinity
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
	p := &podInfo{
		pod:      pod,
		requests: amountsOf(resourcehelper.PodRequests(pod, opts)),
		affinity: nodeaffinity.GetRequiredNodeAffinity(pod),
	}
	opts.NonMissingContainerRequests = guess
	p.usual = amountsOf(resourcehelper.PodRequests(pod, opts))
	p.ports = hostPorts(&pod.Spec)
	return p
}

// hostPorts returns the ports that a pod takes: those of its containers, and of
// the init containers that stay.
func hostPorts(spec *corev1.PodSpec) []hostPort {
	var out []hostPort
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			hp := hostPort{protocol: p.Protocol, ip: p.HostIP, port: p.HostPort}
			if hp.protocol == "" {
				hp.protocol = corev1.ProtocolTCP
			}
			if hp.ip == "" || hp.ip == "::" {
				hp.ip = anyIP
			}
			out = append(out, hp)
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

// filter returns why the node cannot take the pod, or nothing if it can. The
// first kind of reason is the only one told, but for resources, of which all
// that are short are.
func filter(p *podInfo, n *nodeInfo) []string {
	spec := &p.pod.Spec
	if n.node.Spec.Unschedulable && !tolerates(spec, &corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	}) {
		return []string{"node(s) were unschedulable"}
	}
	if t, bad := untolerated(spec, n.node.Spec.Taints); bad {
		return []string{fmt.Sprintf("node(s) had untolerated taint {%s: %s}", t.Key, t.Value)}
	}
	if ok, err := p.affinity.Match(n.node); err != nil || !ok {
		return []string{"node(s) didn't match Pod's node affinity/selector"}
	}
	if !portsFree(p, n) {
		return []string{"node(s) didn't have free ports for the requested pod ports"}
	}
	return short(p, n)
}

func tolerates(spec *corev1.PodSpec, t *corev1.Taint) bool {
	return corev1helpers.TolerationsTolerateTaint(klog.Logger{}, spec.Tolerations, t, false)
}

// untolerated returns the first taint that keeps the pod away.
func untolerated(spec *corev1.PodSpec, taints []corev1.Taint) (corev1.Taint, bool) {
	return corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, taints, spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, false)
}

func portsFree(p *podInfo, n *nodeInfo) bool {
	if len(p.ports) == 0 {
		return true
	}
	for _, other := range n.pods {
		for _, have := range other.ports {
			if slices.ContainsFunc(p.ports, have.clashes) {
				return false
			}
		}
	}
	return true
}

// short returns which resources of the node do not suffice.
func short(p *podInfo, n *nodeInfo) []string {
	var reasons []string
	if int64(len(n.pods))+1 > n.allocatable[corev1.ResourcePods] {
		reasons = append(reasons, "Too many pods")
	}
	for _, name := range slices.Sorted(maps.Keys(p.requests)) {
		want := p.requests[name]
		if name != corev1.ResourcePods && want > 0 && want > n.allocatable[name]-n.requested[name] {
			reasons = append(reasons, "Insufficient "+string(name))
		}
	}
	return reasons
}

// explain says, as kubectl describe shows it, why none of nodes can take a pod.
func explain(nodes int, reasons map[string]int) string {
	if nodes == 0 {
		return "no nodes available to schedule pods"
	}
	var parts []string
	for reason, count := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", count, reason))
	}
	slices.Sort(parts)
	return fmt.Sprintf("0/%d nodes are available: %s.", nodes, strings.Join(parts, ", "))
}
