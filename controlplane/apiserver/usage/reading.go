package usage

// Readings: what a node said, as far as it is believed.

import (
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// No machine has more than this; who says so is not believed.
const (
	maxCores = 1 << 16
	maxBytes = 1 << 50
)

// Two counts of processor time that are closer together than minSpan say too little
// about a rate, and two that are further apart than maxSpan say too little about now.
const (
	minSpan = 500 * time.Millisecond
	maxSpan = time.Minute
)

// A point is what one thing used at one time.
type point struct {
	at     time.Time // by the node's clock, which is compared with nothing but itself
	nanos  *uint64   // of processor time since the thing began
	rate   *uint64   // nanoseconds of it in a second, as the node reckons
	memory uint64    // the working set, in bytes
}

// A reading is one answer of a node.
type reading struct {
	at   time.Time // by our clock
	node *point    // nil if the node said nothing that is believed
	pods map[types.UID]map[string]point
}

// newReading takes from s what is about the node and the pods bound to it, and leaves
// out all that cannot be.
func newReading(s *stats.Summary, node string, bound []corev1.Pod, now time.Time) *reading {
	r := &reading{at: now, pods: map[types.UID]map[string]point{}}
	if s.Node.NodeName != node {
		return r
	}
	if p, ok := newPoint(s.Node.CPU, s.Node.Memory); ok {
		r.node = &p
	}
	known := make(map[stats.PodReference]*corev1.Pod, len(bound))
	for i := range bound {
		p := &bound[i]
		if p.Spec.NodeName == node {
			known[stats.PodReference{Namespace: p.Namespace, Name: p.Name, UID: nodesUID(p)}] = p
		}
	}
	for i := range s.Pods {
		if p := known[s.Pods[i].PodRef]; p != nil {
			r.add(p, s.Pods[i].Containers)
		}
	}
	return r
}

// nodesUID is what the node calls a pod: a static one has a UID of its own there.
func nodesUID(p *corev1.Pod) string {
	if own := p.Annotations[corev1.MirrorPodAnnotationKey]; own != "" {
		return own
	}
	return string(p.UID)
}

// add notes the containers that p has. The last word about each counts.
func (r *reading) add(p *corev1.Pod, said []stats.ContainerStats) {
	declared := containerNames(p)
	for i := range said {
		c := &said[i]
		if !slices.Contains(declared, c.Name) {
			continue
		}
		pt, ok := newPoint(c.CPU, c.Memory)
		if !ok {
			continue
		}
		if r.pods[p.UID] == nil {
			r.pods[p.UID] = map[string]point{}
		}
		r.pods[p.UID][c.Name] = pt
	}
}

func containerNames(p *corev1.Pod) []string {
	var out []string
	for i := range p.Spec.InitContainers {
		out = append(out, p.Spec.InitContainers[i].Name)
	}
	for i := range p.Spec.Containers {
		out = append(out, p.Spec.Containers[i].Name)
	}
	for i := range p.Spec.EphemeralContainers {
		out = append(out, p.Spec.EphemeralContainers[i].Name)
	}
	return out
}

func newPoint(cpu *stats.CPUStats, memory *stats.MemoryStats) (point, bool) {
	if cpu == nil || memory == nil || memory.WorkingSetBytes == nil || *memory.WorkingSetBytes > maxBytes {
		return point{}, false
	}
	p := point{at: cpu.Time.Time, nanos: cpu.UsageCoreNanoSeconds, memory: *memory.WorkingSetBytes}
	if cpu.UsageNanoCores != nil && *cpu.UsageNanoCores <= maxCores*uint64(time.Second) {
		p.rate = cpu.UsageNanoCores
	}
	return p, p.nanos != nil || p.rate != nil
}

// An amount is what one thing uses.
type amount struct {
	rate   uint64 // nanoseconds of processor time in a second
	memory uint64 // bytes
	window time.Duration
}

// since is what was used between the points before and p. Without a point before it is
// what the node reckons; false means that it does not say.
func (p point) since(before *point) (amount, bool) {
	if before != nil && p.nanos != nil && before.nanos != nil && *p.nanos >= *before.nanos {
		span, used := p.at.Sub(before.at), *p.nanos-*before.nanos
		if span >= minSpan && span <= 2*maxSpan {
			rate := math.Round(float64(used) / span.Seconds())
			return amount{uint64(min(rate, maxCores*1e9)), p.memory, span}, rate <= maxCores*1e9
		}
	}
	if p.rate == nil {
		return amount{}, false
	}
	return amount{*p.rate, p.memory, kubeletWindow}, true
}

// kubeletWindow is the time over which kubelets reckon a rate.
const kubeletWindow = 10 * time.Second

// amounts are what a node and its containers use.
type amounts struct {
	at       time.Time // by our clock
	node     *amount
	pods     map[types.UID]map[string]amount // those of which all containers have an amount
	complete bool                            // there is an amount of all that the node spoke of
}

// since is what was used between the readings before, which may be nil, and r.
func (r *reading) since(before *reading) *amounts {
	a := &amounts{at: r.at, pods: make(map[types.UID]map[string]amount, len(r.pods)), complete: true}
	if r.node != nil {
		var old *point
		if before != nil {
			old = before.node
		}
		if n, ok := r.node.since(old); ok {
			a.node = &n
		}
		a.complete = a.node != nil
	}
	for uid, containers := range r.pods {
		of := make(map[string]amount, len(containers))
		for name, p := range containers {
			var old *point
			if before != nil {
				if o, ok := before.pods[uid][name]; ok {
					old = &o
				}
			}
			if n, ok := p.since(old); ok {
				of[name] = n
			}
		}
		if len(of) == len(containers) {
			a.pods[uid] = of
		} else {
			a.complete = false
		}
	}
	return a
}

// pod is what the containers of a pod use, by name, and the longest window of theirs.
func (a *amounts) pod(uid types.UID) (names []string, of map[string]amount, window time.Duration) {
	of = a.pods[uid]
	for _, c := range of {
		window = max(window, c.window)
	}
	return slices.Sorted(maps.Keys(of)), of, window
}
