package kubeauth

// What a node may say of itself in its Node object.

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
)

// ownLabels are the labels under Kubernetes' domains that a node may set.
var ownLabels = []string{
	corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable,
	corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch", corev1.LabelInstanceType,
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
}

// ownLabelDomains are domains whose labels a node may set, with their subdomains.
var ownLabelDomains = []string{"kubelet.kubernetes.io", "node.kubernetes.io"}

// restrictedDomain is for administrators to say what a node must not.
const restrictedDomain = "node-restriction.kubernetes.io"

// nodeBody decides about a node's writes to Nodes.
func nodeBody(_ context.Context, a admission.Attributes, node string) error {
	name := a.GetName()
	var now *corev1.Node
	if a.GetOperation() != admission.Delete {
		n, ok := a.GetObject().(*corev1.Node)
		if !ok {
			return unexpected(a)
		}
		now = n
		if a.GetOperation() == admission.Create {
			name = n.Name
		}
	}
	if name != node {
		return forbid(a, "node %q is not allowed to modify node %q", node, name)
	}
	switch a.GetOperation() {
	case admission.Create:
		return newNode(a, node, now)
	case admission.Update:
		return changedNode(a, node, now)
	default:
		return nil
	}
}

func newNode(a admission.Attributes, node string, now *corev1.Node) error {
	if now.Spec.ConfigSource != nil { //nolint:staticcheck // out of use, and still in the type: nobody may slip it in
		return forbid(a, "node %q is not allowed to create a Node with a configSource", node)
	}
	if bad := disallowed(now.Labels, nil); len(bad) > 0 {
		return forbid(a, "is not allowed to set the following labels: %s", strings.Join(bad, ", "))
	}
	return nil
}

func changedNode(a admission.Attributes, node string, now *corev1.Node) error {
	before, ok := a.GetOldObject().(*corev1.Node)
	if !ok {
		return unexpected(a)
	}
	if now.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(now.Spec.ConfigSource, before.Spec.ConfigSource) { //nolint:staticcheck // out of use, and still in the type: nobody may slip it in
		return forbid(a, "node %q is not allowed to update configSource to a new non-nil configSource", node)
	}
	if !equality.Semantic.DeepEqual(now.Spec.Taints, before.Spec.Taints) {
		return forbid(a, "node %q is not allowed to modify taints", node)
	}
	if !equality.Semantic.DeepEqual(now.OwnerReferences, before.OwnerReferences) {
		return forbid(a, "node %q is not allowed to modify ownerReferences", node)
	}
	if bad := disallowed(now.Labels, before.Labels); len(bad) > 0 {
		return forbid(a, "is not allowed to modify labels: %s", strings.Join(bad, ", "))
	}
	return nil
}

// disallowed returns, in order, the keys that differ between now and before and
// that are not a node's to decide.
func disallowed(now, before map[string]string) []string {
	var bad []string
	for k, v := range now {
		if old, had := before[k]; (!had || old != v) && !mayLabel(k) {
			bad = append(bad, k)
		}
	}
	for k := range before {
		if _, has := now[k]; !has && !mayLabel(k) {
			bad = append(bad, k)
		}
	}
	slices.Sort(bad)
	return bad
}

// mayLabel tells whether a node decides about a label of its own.
func mayLabel(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	if !ok {
		return true
	}
	if within(domain, restrictedDomain) {
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

func within(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}
