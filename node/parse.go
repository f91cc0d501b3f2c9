// This file parses command-line values about a node.

package node

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

func typesUID(name string) types.UID { return types.UID(name) }

// ParseName makes a node's name of a host name: without spaces around it and in
// lower case. It must be a DNS subdomain.
func ParseName(s string) (string, error) {
	name := strings.ToLower(strings.TrimSpace(s))
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf("node name %q: %s", s, problems[0])
	}
	return name, nil
}

// allowedLabels are the labels of Kubernetes' own domains that a node may give
// itself; so are those below kubelet.kubernetes.io and node.kubernetes.io.
var allowedLabels = map[string]bool{
	corev1.LabelHostname:                true,
	corev1.LabelOSStable:                true,
	corev1.LabelArchStable:              true,
	"beta.kubernetes.io/os":             true,
	"beta.kubernetes.io/arch":           true,
	corev1.LabelInstanceType:            true,
	corev1.LabelInstanceTypeStable:      true,
	corev1.LabelFailureDomainBetaZone:   true,
	corev1.LabelFailureDomainBetaRegion: true,
	corev1.LabelTopologyZone:            true,
	corev1.LabelTopologyRegion:          true,
}

// ParseLabels reads KEY=VALUE,… . Labels that the API server would not let a node
// give itself are refused.
func ParseLabels(s string) (map[string]string, error) {
	labels := map[string]string{}
	for _, item := range items(s) {
		key, value, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not KEY=VALUE", item)
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return nil, fmt.Errorf("key %q: %s", key, problems[0])
		}
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			return nil, fmt.Errorf("value %q of %s: %s", value, key, problems[0])
		}
		labels[key] = value
	}
	return labels, checkLabels(labels)
}

func checkLabels(labels map[string]string) error {
	var refused []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		domain, _, ok := strings.Cut(key, "/")
		if !ok || allowedLabels[key] || !within(domain, "kubernetes.io") && !within(domain, "k8s.io") {
			continue
		}
		if !within(domain, "kubelet.kubernetes.io") && !within(domain, "node.kubernetes.io") {
			refused = append(refused, key)
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("a node may not label itself %s; use another domain than kubernetes.io and k8s.io, or have an administrator set it",
			strings.Join(refused, ", "))
	}
	return nil
}

// within reports whether domain is parent or a domain below it.
func within(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}

func items(s string) []string {
	var list []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			list = append(list, item)
		}
	}
	return list
}

// ParseTaints reads KEY=VALUE:EFFECT,… where =VALUE may be left out.
func ParseTaints(s string) ([]corev1.Taint, error) {
	var list []corev1.Taint
	for _, item := range items(s) {
		rest, effect, ok := strings.Cut(item, ":")
		key, value, _ := strings.Cut(rest, "=")
		t := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
		switch t.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			ok = false
		}
		if !ok {
			return nil, fmt.Errorf("%q is not KEY=VALUE:EFFECT with effect NoSchedule, PreferNoSchedule or NoExecute", item)
		}
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return nil, fmt.Errorf("key %q: %s", key, problems[0])
		}
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			return nil, fmt.Errorf("value %q of %s: %s", value, key, problems[0])
		}
		if slices.ContainsFunc(list, func(o corev1.Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }) {
			return nil, fmt.Errorf("%s:%s is given twice", t.Key, t.Effect)
		}
		list = append(list, t)
	}
	return list, nil
}

// ParseIPs reads one address, or two of different families separated by a comma. Addresses
// that other machines cannot reach are refused.
func ParseIPs(s string) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, item := range items(s) {
		ip, err := netip.ParseAddr(item)
		if err != nil {
			return nil, fmt.Errorf("%q is not an IP address", item)
		}
		ip = ip.Unmap()
		if err := checkIP(ip); err != nil {
			return nil, err
		}
		list = append(list, ip)
	}
	if len(list) > 2 || len(list) == 2 && list[0].Is4() == list[1].Is4() {
		return nil, fmt.Errorf("%q must be one address, or one of each IP family", s)
	}
	return list, nil
}

func checkIP(ip netip.Addr) error {
	switch {
	case ip.IsLoopback():
		return fmt.Errorf("%s is a loopback address, which no other machine reaches", ip)
	case ip.IsMulticast():
		return fmt.Errorf("%s is a multicast address", ip)
	case ip.IsLinkLocalUnicast():
		return fmt.Errorf("%s is a link-local address", ip)
	case ip.IsUnspecified():
		return fmt.Errorf("%s is the unspecified address", ip)
	}
	return nil
}

// ParseReserved reads NAME=QUANTITY,… such as cpu=200m,memory=256Mi, as
// --kube-reserved and --system-reserved have it; sum the lists of both with
// AddReserved.
func ParseReserved(s string) (corev1.ResourceList, error) {
	list := corev1.ResourceList{}
	for _, item := range items(s) {
		name, value, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not NAME=QUANTITY", item)
		}
		switch corev1.ResourceName(name) {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, "pid":
		default:
			return nil, fmt.Errorf("%q cannot be reserved, only cpu, memory, ephemeral-storage and pid", name)
		}
		q, err := resource.ParseQuantity(value)
		if err != nil || q.Sign() < 0 {
			return nil, fmt.Errorf("%q is no quantity of %s", value, name)
		}
		list[corev1.ResourceName(name)] = q
	}
	return list, nil
}

// AddReserved returns the sum of two lists.
func AddReserved(a, b corev1.ResourceList) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for _, list := range []corev1.ResourceList{a, b} {
		for name, q := range list {
			have := sum[name]
			have.Add(q)
			sum[name] = have
		}
	}
	return sum
}
