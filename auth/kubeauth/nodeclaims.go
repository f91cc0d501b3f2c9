package kubeauth

// What a node may write to its Node object.

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"

	"github.com/hawser-project/hawser/auth"
)

// ownLabels are the labels under Kubernetes' domains that a node may set.
var ownLabels = append([]string{
	corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, corev1.LabelInstanceTypeStable,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch", corev1.LabelInstanceType,
}, placeLabels...)

// placeLabels are those of zone and region. A node sets them when its Node is created, not
// later.
var placeLabels = []string{
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
}

// ownLabelDomains are domains whose labels a node may set, with their subdomains.
var ownLabelDomains = []string{"kubelet.kubernetes.io", "node.kubernetes.io"}

const (
	// restrictedDomain has labels that only administrators may set.
	restrictedDomain = "node-restriction.kubernetes.io"
	// hawserDomain has labels of the control plane and administrators.
	hawserDomain = "hawser.dev"
)

// ownNode allows writes to the node's own Node.
func ownNode(_ context.Context, w attempt) error {
	name, err := nameOf(w)
	if err != nil {
		return err
	}
	if name != w.node {
		return fmt.Errorf("node %q is not allowed to modify node %q", w.node, name)
	}
	return nil
}

func configSource(w attempt, now, before *corev1.Node) error {
	is, was := now.Spec.ConfigSource, before.Spec.ConfigSource //nolint:staticcheck // unused, but still in the type: it must stay unset
	switch {
	case is == nil || was != nil && equality.Semantic.DeepEqual(is, was):
		return nil
	case w.a.GetOperation() == admission.Create:
		return fmt.Errorf("node %q is not allowed to create a Node with a configSource", w.node)
	}
	return fmt.Errorf("node %q is not allowed to update configSource to a new non-nil configSource", w.node)
}

func taints(w attempt, now, before *corev1.Node) error {
	same := slices.EqualFunc(now.Spec.Taints, before.Spec.Taints, func(a, b corev1.Taint) bool {
		return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect && a.TimeAdded.Equal(b.TimeAdded)
	})
	if same {
		return nil
	}
	return fmt.Errorf("node %q is not allowed to modify taints", w.node)
}

func nodeOwners(w attempt, now, before *corev1.Node) error {
	if sameOwners(now.OwnerReferences, before.OwnerReferences) {
		return nil
	}
	return fmt.Errorf("node %q is not allowed to modify ownerReferences", w.node)
}

func nodeFinalizers(w attempt, now, before *corev1.Node) error {
	return finalizers(w.node, "Node", now, before)
}

func nodeLabels(w attempt, now, before *corev1.Node) error {
	return labelError(w, disallowed(now.Labels, before.Labels, mayLabel))
}

func zoneLabels(w attempt, now, before *corev1.Node) error {
	return labelError(w, disallowed(now.Labels, before.Labels, func(key string) bool { return !slices.Contains(placeLabels, key) }))
}

func siteLabel(w attempt, now, before *corev1.Node) error {
	return labelError(w, disallowed(now.Labels, before.Labels, func(key string) bool { return key != auth.SiteLabel }))
}

func labelError(w attempt, bad []string) error {
	switch {
	case len(bad) == 0:
		return nil
	case w.a.GetOperation() == admission.Create:
		return fmt.Errorf("is not allowed to set the following labels: %s", strings.Join(bad, ", "))
	}
	return fmt.Errorf("is not allowed to modify labels: %s", strings.Join(bad, ", "))
}

func hawserAnnotations(w attempt, now, before *corev1.Node) error {
	bad := disallowed(now.Annotations, before.Annotations, mayAnnotate)
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("node %q is not allowed to modify annotations: %s", w.node, strings.Join(bad, ", "))
}

// disallowed returns, in order, the keys that differ between now and before and that a
// node may not change.
func disallowed(now, before map[string]string, may func(key string) bool) []string {
	var bad []string
	for k, v := range now {
		if old, had := before[k]; (!had || old != v) && !may(k) {
			bad = append(bad, k)
		}
	}
	for k := range before {
		if _, has := now[k]; !has && !may(k) {
			bad = append(bad, k)
		}
	}
	slices.Sort(bad)
	return bad
}

// mayLabel reports whether a node may set a label of its Node.
func mayLabel(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	if !ok {
		return true
	}
	if within(domain, restrictedDomain) || within(domain, hawserDomain) {
		return false
	}
	if !within(domain, "kubernetes.io") && !within(domain, "k8s.io") {
		return true
	}
	if slices.Contains(ownLabels, key) {
		return true
	}
	return slices.ContainsFunc(ownLabelDomains, func(d string) bool { return within(domain, d) })
}

// mayAnnotate reports whether a node may set an annotation of its Node.
func mayAnnotate(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	return !ok || key == auth.TransportAnnotation || !within(domain, hawserDomain) && !within(domain, restrictedDomain)
}

func within(domain, parent string) bool {
	rest, ok := strings.CutSuffix(domain, parent)
	return ok && (rest == "" || strings.HasSuffix(rest, "."))
}

func podRanges(w attempt, now, before *corev1.Node) error {
	if now.Spec.PodCIDR == before.Spec.PodCIDR && slices.Equal(now.Spec.PodCIDRs, before.Spec.PodCIDRs) {
		return nil
	}
	return fmt.Errorf("node %q is not allowed to set its pod ranges", w.node)
}

func providerID(w attempt, now, before *corev1.Node) error {
	if now.Spec.ProviderID == before.Spec.ProviderID || before.Spec.ProviderID == "" {
		return nil
	}
	return fmt.Errorf("node %q is not allowed to change its providerID", w.node)
}

// bounds are the limits of the lists in a Node. Kubernetes' kubelet stays far below by
// default.
var bounds = []struct {
	name  string
	most  int
	count func(*corev1.Node) int
}{
	{"metadata.labels", 512, func(n *corev1.Node) int { return len(n.Labels) }},
	{"metadata.annotations", 512, func(n *corev1.Node) int { return len(n.Annotations) }},
	{"spec.taints", 128, func(n *corev1.Node) int { return len(n.Spec.Taints) }},
	{"status.addresses", 64, func(n *corev1.Node) int { return len(n.Status.Addresses) }},
	{"status.conditions", 128, func(n *corev1.Node) int { return len(n.Status.Conditions) }},
	{"status.capacity", 512, func(n *corev1.Node) int { return len(n.Status.Capacity) }},
	{"status.allocatable", 512, func(n *corev1.Node) int { return len(n.Status.Allocatable) }},
	{"status.images", 1000, func(n *corev1.Node) int { return len(n.Status.Images) }},
	{"status.volumesInUse", 4096, func(n *corev1.Node) int { return len(n.Status.VolumesInUse) }},
	{"status.runtimeHandlers", 128, func(n *corev1.Node) int { return len(n.Status.RuntimeHandlers) }},
}

// counts refuses a list that has grown beyond its bound.
func counts(w attempt, now, before *corev1.Node) error {
	for i := range bounds {
		b := &bounds[i]
		if n := b.count(now); n > b.most && n > b.count(before) {
			return fmt.Errorf("node %q is not allowed %d entries in %s, at most %d", w.node, n, b.name, b.most)
		}
	}
	return nil
}

// hawserConditions refuses changes of the conditions of hawser.dev.
func hawserConditions(w attempt, now, before *corev1.Node) error {
	bad := foreign(now.Status.Conditions, before.Status.Conditions)
	if bad == "" {
		bad = foreign(before.Status.Conditions, now.Status.Conditions)
	}
	if bad == "" {
		return nil
	}
	return fmt.Errorf("node %q is not allowed to modify the condition %s", w.node, bad)
}

// foreign returns a condition of hawser.dev in list that differs in others.
func foreign(list, others []corev1.NodeCondition) corev1.NodeConditionType {
	for i := range list {
		c := &list[i]
		domain, _, ok := strings.Cut(string(c.Type), "/")
		if !ok || !within(domain, hawserDomain) {
			continue
		}
		same := slices.ContainsFunc(others, func(o corev1.NodeCondition) bool {
			return o.Type == c.Type && o.Status == c.Status && o.Reason == c.Reason && o.Message == c.Message &&
				o.LastHeartbeatTime.Equal(&c.LastHeartbeatTime) && o.LastTransitionTime.Equal(&c.LastTransitionTime)
		})
		if !same {
			return c.Type
		}
	}
	return ""
}

func addresses(w attempt, now, before *corev1.Node) error {
	if slices.Equal(now.Status.Addresses, before.Status.Addresses) {
		return nil
	}
	for i := range now.Status.Addresses {
		text := now.Status.Addresses[i].Address
		if ip, err := netip.ParseAddr(text); err == nil && nobodys(ip) {
			return fmt.Errorf("node %q is not allowed to have the address %s, which means another machine everywhere, or none", w.node, text)
		}
	}
	return nil
}

// nobodys reports whether an address cannot be that of one machine.
func nobodys(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip == broadcast
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func volumesAttached(w attempt, now, before *corev1.Node) error {
	if slices.Equal(now.Status.VolumesAttached, before.Status.VolumesAttached) {
		return nil
	}
	return fmt.Errorf("node %q is not allowed to say which volumes are attached", w.node)
}

func podLabels(w attempt, now, before *corev1.Pod) error {
	if maps.Equal(now.Labels, before.Labels) {
		return nil
	}
	return fmt.Errorf("node %q cannot update labels through pod status", w.node)
}
