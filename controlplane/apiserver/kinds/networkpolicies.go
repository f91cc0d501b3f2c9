// The kind NetworkPolicy.

package kinds

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	netutils "k8s.io/utils/net"
)

func networkPolicies() Kind {
	return of[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList](networkingv1.SchemeGroupVersion, "NetworkPolicy", "networkpolicies", "networkpolicy", Kind{
		short: []string{"netpol"}, generation: true,
		rules:    Rules{Create: create(validateNetworkPolicy), Update: anew(validateNetworkPolicy)},
		defaults: defaulting(defaultNetworkPolicy),
		table:    networkPolicyTable,
	})
}

// defaultNetworkPolicy states the directions a policy covers: always ingress, and
// egress where it has a rule for it.
func defaultNetworkPolicy(o *networkingv1.NetworkPolicy) {
	s := &o.Spec
	for i := range s.Ingress {
		defaultPolicyPorts(s.Ingress[i].Ports)
	}
	for i := range s.Egress {
		defaultPolicyPorts(s.Egress[i].Ports)
	}
	if len(s.PolicyTypes) > 0 {
		return
	}
	s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	if len(s.Egress) > 0 {
		s.PolicyTypes = append(s.PolicyTypes, networkingv1.PolicyTypeEgress)
	}
}

func defaultPolicyPorts(ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		setPtr(&ports[i].Protocol, corev1.ProtocolTCP)
	}
}

// validateNetworkPolicy checks a network policy.
func validateNetworkPolicy(n *networkingv1.NetworkPolicy) field.ErrorList {
	p := field.NewPath("spec")
	errs := labelSelector(&n.Spec.PodSelector, p.Child("podSelector"))
	for i := range n.Spec.Ingress {
		at := p.Child("ingress").Index(i)
		errs = append(errs, policyPorts(n.Spec.Ingress[i].Ports, at.Child("ports"))...)
		errs = append(errs, policyPeers(n.Spec.Ingress[i].From, at.Child("from"))...)
	}
	for i := range n.Spec.Egress {
		at := p.Child("egress").Index(i)
		errs = append(errs, policyPorts(n.Spec.Egress[i].Ports, at.Child("ports"))...)
		errs = append(errs, policyPeers(n.Spec.Egress[i].To, at.Child("to"))...)
	}
	if len(n.Spec.PolicyTypes) > 2 {
		return append(errs, field.Invalid(p.Child("policyTypes"), &n.Spec.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, t := range n.Spec.PolicyTypes {
		errs = append(errs, optionalOneOf(&t, p.Child("policyTypes").Index(i), networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)...)
	}
	return errs
}

func policyPorts(ports []networkingv1.NetworkPolicyPort, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, port := range ports {
		at := p.Index(i)
		errs = append(errs, optionalOneOf(port.Protocol, at.Child("protocol"), corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
		if port.Port != nil {
			errs = append(errs, portNumberOrName(*port.Port, at.Child("port"))...)
		}
		end := port.EndPort
		switch {
		case end == nil:
		case port.Port == nil:
			errs = append(errs, field.Required(at.Child("port"), "must be specified when `endPort` is specified"))
		case port.Port.Type == intstr.String:
			errs = append(errs, field.Invalid(at.Child("endPort"), *end, "may not be specified when `port` is non-numeric"))
		case *end < port.Port.IntVal:
			errs = append(errs, field.Invalid(at.Child("endPort"), *end, "must be greater than or equal to `port`"))
		default:
			errs = append(errs, portNumber(*end, at.Child("endPort"))...)
		}
	}
	return errs
}

func policyPeers(peers []networkingv1.NetworkPolicyPeer, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range peers {
		peer, at := &peers[i], p.Index(i)
		switch {
		case peer.IPBlock == nil && peer.PodSelector == nil && peer.NamespaceSelector == nil:
			errs = append(errs, field.Required(at, "must specify a peer"))
		case peer.IPBlock != nil && (peer.PodSelector != nil || peer.NamespaceSelector != nil):
			errs = append(errs, field.Forbidden(at, "may not specify both ipBlock and another peer"))
		}
		errs = append(errs, labelSelector(peer.PodSelector, at.Child("podSelector"))...)
		errs = append(errs, labelSelector(peer.NamespaceSelector, at.Child("namespaceSelector"))...)
		if peer.IPBlock != nil {
			errs = append(errs, ipBlock(peer.IPBlock, at.Child("ipBlock"))...)
		}
	}
	return errs
}

func ipBlock(b *networkingv1.IPBlock, p *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(p.Child("cidr"), "")}
	}
	errs := cidr(b.CIDR, p.Child("cidr"))
	_, whole, err := netutils.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return errs
	}
	size, _ := whole.Mask.Size()
	for i, e := range b.Except {
		at := p.Child("except").Index(i)
		errs = append(errs, cidr(e, at)...)
		_, part, err := netutils.ParseCIDRSloppy(e)
		if err != nil {
			continue
		}
		if n, _ := part.Mask.Size(); !whole.Contains(part.IP) || n <= size {
			errs = append(errs, field.Invalid(at, e, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}

func networkPolicyTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{nameColumn(), text("Pod-Selector", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]), ageColumn()},
		func(o *networkingv1.NetworkPolicy, now time.Time) []any {
			return []any{o.Name, metav1.FormatLabelSelector(&o.Spec.PodSelector), age(o.CreationTimestamp, now)}
		})
}
