// Addresses that could be read in two ways.

package kinds

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestStrictAddresses: what some programs read as octal, or as of another family, or as a network
// with an address of a host, is refused where it is new, and may stay where it was stored.
func TestStrictAddresses(t *testing.T) {
	t.Parallel()
	const zeros, mapped, host = "must not have leading 0s", "must not be an IPv4-mapped IPv6 address", "must not have bits set beyond the prefix length"
	for _, c := range []struct {
		gk    schema.GroupKind
		fresh func(address string) runtime.Object
		path  string
		bad   map[string]string
	}{
		{schema.GroupKind{Kind: "Pod"}, func(a string) runtime.Object {
			p := goodPod(t)()
			p.Spec.HostAliases = []corev1.HostAlias{{IP: a, Hostnames: []string{"a"}}}
			return p
		}, "spec.hostAliases[0].ip", map[string]string{"10.0.0.01": zeros, "::ffff:10.0.0.1": mapped}},
		{schema.GroupKind{Kind: "Pod"}, func(a string) runtime.Object {
			p := goodPod(t)()
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{a}}
			return p
		}, "spec.dnsConfig.nameservers[0]", map[string]string{"10.0.0.01": zeros}},
		{schema.GroupKind{Kind: "Service"}, func(a string) runtime.Object {
			s := defaulted[corev1.Service](t, `{metadata: {name: s}, spec: {ports: [{port: 80}]}}`)
			s.Spec.ExternalIPs, s.Spec.ExternalTrafficPolicy = []string{a}, "Cluster"
			return s
		}, "spec.externalIPs[0]", map[string]string{"10.0.0.01": zeros, "::ffff:10.0.0.1": mapped}},
		{schema.GroupKind{Kind: "Endpoints"}, func(a string) runtime.Object {
			e := defaulted[corev1.Endpoints](t, `{metadata: {name: e}, subsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 80}]}]}`)
			e.Subsets[0].Addresses[0].IP = a
			return e
		}, "subsets[0].addresses[0].ip", map[string]string{"10.0.0.01": zeros, "::ffff:10.0.0.1": mapped}},
		{schema.GroupKind{Group: discoveryv1.GroupName, Kind: "EndpointSlice"}, func(a string) runtime.Object {
			return &discoveryv1.EndpointSlice{AddressType: "IPv4", Endpoints: []discoveryv1.Endpoint{{Addresses: []string{a}}}}
		}, "endpoints[0].addresses[0]", map[string]string{"10.0.0.01": zeros}},
		{schema.GroupKind{Group: networkingv1.GroupName, Kind: "NetworkPolicy"}, func(a string) runtime.Object {
			peer := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: a}}
			return &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{peer}}}}}
		}, "spec.ingress[0].from[0].ipBlock.cidr", map[string]string{"10.0.0.1/8": host, "010.0.0.0/8": zeros + " in IP or prefix length", "10.0.0.0/08": zeros, "::ffff:10.0.0.0/104": "must not have an IPv4-mapped IPv6 address"}},
	} {
		rules := For(c.gk)
		for address, why := range c.bad {
			check(t, rules.Create(c.fresh(address)), c.path+": Invalid value: \""+address+"\": "+why)
			check(t, rules.Update(c.fresh(address), c.fresh(address)))
		}
		if p, is := c.fresh("10.0.0.01").(*corev1.Service); is { // stored at another place of the list
			was := p.DeepCopy()
			was.Spec.ExternalIPs = []string{"10.0.0.2", "10.0.0.01"}
			check(t, rules.Update(p, was))
			if errs := rules.Update(was, c.fresh("10.0.0.3")); !strings.Contains(errs.ToAggregate().Error(), "spec.externalIPs[1]") {
				t.Error(errs)
			}
		}
	}
}
