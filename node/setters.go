// This file computes a node's status. But for reading the clock's time from its
// arguments, everything in it is pure.

package node

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

// A report has the inputs of a status.
type report struct {
	cfg      *Config
	now      time.Time
	facts    facts
	info     runtime.Info
	images   []runtime.Image // nil if unknown
	ips      []netip.Addr
	problems []string // why the node is not ready
	// pressure says which resources are short now, or were recently.
	memory, disk, pids bool
}

// set writes the status into node and returns the events about its changes.
func (r *report) set(node *corev1.Node) []event {
	st := &node.Status
	r.setAddresses(node)
	r.setResources(st)
	events := r.setInfo(st)
	st.DaemonEndpoints.KubeletEndpoint.Port = r.cfg.KubeletPort
	if r.images != nil {
		st.Images = imagesOf(r.images, *r.cfg.MaxImages)
	}
	if st.Images == nil {
		st.Images = []corev1.ContainerImage{}
	}
	return append(events, r.setConditions(node)...)
}

// An event reports a change of the node.
type event struct{ kind, reason, message string }

// providedIP tells a cloud controller manager which addresses were asked for.
const providedIP = "alpha.kubernetes.io/provided-node-ip"

func (r *report) setAddresses(node *corev1.Node) {
	if r.cfg.ExternalCloud {
		if len(r.cfg.IPs) > 0 {
			list := make([]string, 0, 2)
			for _, ip := range r.cfg.IPs {
				list = append(list, ip.String())
			}
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, providedIP, strings.Join(list, ","))
		}
		if len(node.Status.Addresses) > 0 {
			return // the cloud controller manager has set them
		}
	}
	var list []corev1.NodeAddress
	for _, ip := range r.ips {
		list = append(list, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	node.Status.Addresses = append(list, corev1.NodeAddress{Type: corev1.NodeHostName, Address: r.cfg.Hostname})
}

func byteCount(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }

func (r *report) setResources(st *corev1.NodeStatus) {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(int64(r.facts.cpus)*1000, resource.DecimalSI),
		corev1.ResourceMemory:           byteCount(r.facts.memory),
		corev1.ResourcePods:             *resource.NewQuantity(int64(r.cfg.MaxPods), resource.DecimalSI),
		corev1.ResourceEphemeralStorage: byteCount(r.facts.nodefs.size),
	}
	huge := int64(0)
	for size, n := range r.facts.hugePages {
		capacity[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)] = byteCount(n)
		huge += n
	}
	allocatable := maps.Clone(capacity)
	take := func(name corev1.ResourceName, q resource.Quantity) {
		have := allocatable[name].DeepCopy()
		have.Sub(q)
		if have.Sign() < 0 {
			have = *resource.NewQuantity(0, have.Format)
		}
		allocatable[name] = have
	}
	for name, q := range r.cfg.Reserved {
		if _, ok := allocatable[name]; ok {
			take(name, q)
		}
	}
	take(corev1.ResourceMemory, byteCount(huge+r.cfg.Thresholds.reserve(MemoryAvailable, r.facts.memory)))
	take(corev1.ResourceEphemeralStorage, byteCount(r.cfg.Thresholds.reserve(NodefsAvailable, r.facts.nodefs.size)))
	keepOthers(capacity, st.Capacity)
	keepOthers(allocatable, st.Allocatable)
	st.Capacity, st.Allocatable = capacity, allocatable
}

// keepOthers keeps the resources that other components set, such as devices. Huge pages are the
// node's own: a size that this machine does not have was that of another.
func keepOthers(list, old corev1.ResourceList) {
	for name, q := range old {
		if _, ours := list[name]; !ours && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			list[name] = q
		}
	}
}

func (r *report) setInfo(st *corev1.NodeStatus) []event {
	var events []event
	if old := st.NodeInfo.BootID; old != "" && r.facts.bootID != "" && old != r.facts.bootID {
		events = append(events, event{
			corev1.EventTypeWarning, "Rebooted",
			"Node " + r.cfg.Name + " has been rebooted, boot id: " + r.facts.bootID,
		})
	}
	st.NodeInfo = corev1.NodeSystemInfo{
		MachineID:               r.facts.machineID,
		SystemUUID:              r.facts.systemUUID,
		BootID:                  r.facts.bootID,
		KernelVersion:           r.facts.kernel,
		OSImage:                 r.facts.osImage,
		ContainerRuntimeVersion: r.info.Name + "://" + r.info.Version,
		KubeletVersion:          r.cfg.Version,
		OperatingSystem:         "linux",
		Architecture:            r.facts.architecture,
	}
	if r.facts.swap > 0 { // kube-apiserver refuses a node with zero, and kubelets leave it out
		st.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: &r.facts.swap}
	}
	return events
}

// A verdict is the reason and message of a condition in one of its states.
type verdict struct{ reason, message, event string }

// setConditions sets the conditions that the node owns, Ready last, and does not move those
// of others.
func (r *report) setConditions(node *corev1.Node) []event {
	pressure := func(t corev1.NodeConditionType, yes bool, when, otherwise verdict) (corev1.NodeCondition, verdict) {
		if yes {
			return corev1.NodeCondition{Type: t, Status: corev1.ConditionTrue}, when
		}
		return corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse}, otherwise
	}
	var events []event
	set := func(c corev1.NodeCondition, v verdict) {
		c.Reason, c.Message = v.reason, v.message
		if r.setCondition(&node.Status, c) {
			events = append(events, event{corev1.EventTypeNormal, v.event, "Node " + r.cfg.Name + " status is now: " + v.event})
		}
	}
	set(pressure(corev1.NodeMemoryPressure, r.memory,
		verdict{"KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory"},
		verdict{"KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"}))
	set(pressure(corev1.NodeDiskPressure, r.disk,
		verdict{"KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"},
		verdict{"KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"}))
	set(pressure(corev1.NodePIDPressure, r.pids,
		verdict{"KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"},
		verdict{"KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"}))
	set(pressure(corev1.NodeReady, len(r.problems) == 0,
		verdict{"KubeletReady", "kubelet is posting ready status", "NodeReady"},
		verdict{"KubeletNotReady", strings.Join(r.problems, ", "), "NodeNotReady"}))
	return events
}

// setCondition sets one condition and reports whether its status has changed. The
// Ready condition is put last.
func (r *report) setCondition(st *corev1.NodeStatus, c corev1.NodeCondition) bool {
	now := metav1.NewTime(r.now).Rfc3339Copy()
	c.LastHeartbeatTime, c.LastTransitionTime = now, now
	changed := true
	i := slices.IndexFunc(st.Conditions, func(o corev1.NodeCondition) bool { return o.Type == c.Type })
	if i >= 0 {
		if old := st.Conditions[i]; old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
			changed = false
		}
		if c.Type != corev1.NodeReady {
			st.Conditions[i] = c
			return changed
		}
		st.Conditions = slices.Delete(st.Conditions, i, i+1)
	}
	st.Conditions = append(st.Conditions, c)
	return changed
}

// statusChanged reports whether two statuses differ in more than the time of the
// last heartbeat. The order of conditions means nothing.
func statusChanged(a, b *corev1.NodeStatus) bool {
	return !equalStatus(normal(a), normal(b))
}

// normal returns a copy of a status as it is compared.
func normal(st *corev1.NodeStatus) *corev1.NodeStatus {
	c := st.DeepCopy()
	for i := range c.Conditions {
		c.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	slices.SortFunc(c.Conditions, func(x, y corev1.NodeCondition) int { return cmp.Compare(x.Type, y.Type) })
	return c
}
