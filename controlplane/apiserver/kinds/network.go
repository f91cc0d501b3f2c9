// Rules for network policies and ingresses.

package kinds

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateNetworkPolicy checks a network policy.
func ValidateNetworkPolicy(n *networkingv1.NetworkPolicy) field.ErrorList {
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
	whole, err := netip.ParsePrefix(b.CIDR)
	for i, e := range b.Except {
		at := p.Child("except").Index(i)
		bad := cidr(e, at)
		errs = append(errs, bad...)
		part, partErr := netip.ParsePrefix(e)
		if len(bad) > 0 || err != nil || partErr != nil {
			continue
		}
		if !whole.Contains(part.Addr()) || part.Bits() <= whole.Bits() {
			errs = append(errs, field.Invalid(at, e, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}

// ValidateIngress checks an ingress.
func ValidateIngress(o *networkingv1.Ingress) field.ErrorList {
	p := field.NewPath("spec")
	s := &o.Spec
	var errs field.ErrorList
	if len(s.Rules) == 0 && s.DefaultBackend == nil {
		errs = append(errs, field.Invalid(p, s.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if s.DefaultBackend != nil {
		errs = append(errs, ingressBackend(s.DefaultBackend, p.Child("defaultBackend"))...)
	}
	if c := s.IngressClassName; c != nil {
		errs = append(errs, dnsSubdomain(*c, p.Child("ingressClassName"))...)
	}
	for i, t := range s.TLS {
		for j, h := range t.Hosts {
			errs = append(errs, hostName(h, p.Child("tls").Index(i).Child("hosts").Index(j))...)
		}
		if t.SecretName != "" {
			errs = append(errs, dnsSubdomain(t.SecretName, p.Child("tls").Index(i).Child("secretName"))...)
		}
	}
	for i := range s.Rules {
		r, at := &s.Rules[i], p.Child("rules").Index(i)
		if r.Host != "" {
			if _, err := netip.ParseAddr(r.Host); err == nil {
				errs = append(errs, field.Invalid(at.Child("host"), r.Host, "must be a DNS name, not an IP address"))
			} else {
				errs = append(errs, hostName(r.Host, at.Child("host"))...)
			}
		}
		if r.HTTP == nil {
			continue
		}
		if len(r.HTTP.Paths) == 0 {
			errs = append(errs, field.Required(at.Child("http", "paths"), ""))
		}
		for j := range r.HTTP.Paths {
			errs = append(errs, ingressPath(&r.HTTP.Paths[j], at.Child("http", "paths").Index(j))...)
		}
	}
	return errs
}

// hostName wants a DNS name, whose first label may be an asterisk.
func hostName(h string, p *field.Path) field.ErrorList {
	if strings.Contains(h, "*") {
		return messages(p, h, validation.IsWildcardDNS1123Subdomain(h))
	}
	return dnsSubdomain(h, p)
}

func ingressPath(h *networkingv1.HTTPIngressPath, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if h.PathType == nil {
		return field.ErrorList{field.Required(p.Child("pathType"), "pathType must be specified")}
	}
	at := p.Child("path")
	switch *h.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if !strings.HasPrefix(h.Path, "/") {
			errs = append(errs, field.Invalid(at, h.Path, "must be an absolute path"))
		}
		for _, bad := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(h.Path, bad) {
				errs = append(errs, field.Invalid(at, h.Path, "must not contain '"+bad+"'"))
			}
		}
		for _, bad := range []string{"/..", "/."} {
			if strings.HasSuffix(h.Path, bad) {
				errs = append(errs, field.Invalid(at, h.Path, "cannot end with '"+bad+"'"))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if h.Path != "" && !strings.HasPrefix(h.Path, "/") {
			errs = append(errs, field.Invalid(at, h.Path, "must be an absolute path"))
		}
	default:
		errs = append(errs, optionalOneOf(h.PathType, p.Child("pathType"),
			networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific, networkingv1.PathTypePrefix)...)
	}
	return append(errs, ingressBackend(&h.Backend, p.Child("backend"))...)
}

func ingressBackend(b *networkingv1.IngressBackend, p *field.Path) field.ErrorList {
	switch {
	case b.Service != nil && b.Resource != nil:
		return field.ErrorList{field.Invalid(p, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		errs := required(b.Resource.Kind, p.Child("resource", "kind"))
		return append(errs, required(b.Resource.Name, p.Child("resource", "name"))...)
	case b.Service == nil:
		return field.ErrorList{field.Required(p, "service or resource backend is required")}
	}
	at := p.Child("service")
	var errs field.ErrorList
	if b.Service.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		errs = append(errs, dnsLabel(b.Service.Name, at.Child("name"))...)
	}
	port := b.Service.Port
	switch {
	case port.Name != "" && port.Number != 0:
		errs = append(errs, field.Invalid(at, "", "cannot set both port name & port number"))
	case port.Name != "":
		errs = append(errs, messages(at.Child("port", "name"), port.Name, validation.IsValidPortName(port.Name))...)
	case port.Number != 0:
		errs = append(errs, portNumber(port.Number, at.Child("port", "number"))...)
	default:
		errs = append(errs, field.Required(at, "port name or number is required"))
	}
	return errs
}

// ValidateIngressStatus checks where an ingress says it can be reached.
func ValidateIngressStatus(o *networkingv1.Ingress) field.ErrorList {
	var errs field.ErrorList
	for i, in := range o.Status.LoadBalancer.Ingress {
		at := field.NewPath("status", "loadBalancer", "ingress").Index(i)
		if in.IP != "" {
			errs = append(errs, ip(in.IP, at.Child("ip"))...)
		}
		errs = append(errs, ingressHostname(in.Hostname, at.Child("hostname"))...)
	}
	return errs
}

// ValidateIngressClass checks an ingress class.
func ValidateIngressClass(c *networkingv1.IngressClass) field.ErrorList {
	p := field.NewPath("spec")
	var errs field.ErrorList
	if c.Spec.Controller == "" {
		errs = append(errs, field.Required(p.Child("controller"), ""))
	} else {
		errs = append(errs, validation.IsDomainPrefixedPath(p.Child("controller"), c.Spec.Controller)...)
	}
	if r := c.Spec.Parameters; r != nil {
		at := p.Child("parameters")
		errs = append(errs, required(r.Kind, at.Child("kind"))...)
		errs = append(errs, required(r.Name, at.Child("name"))...)
		scope := deref(r.Scope)
		scopes := []string{networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace}
		switch {
		case !slices.Contains(scopes, scope):
			errs = append(errs, oneOf(scope, at.Child("scope"), scopes...)...)
		case scope == networkingv1.IngressClassParametersReferenceScopeNamespace && deref(r.Namespace) == "":
			errs = append(errs, field.Required(at.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
		case scope == networkingv1.IngressClassParametersReferenceScopeCluster && r.Namespace != nil:
			errs = append(errs, field.Forbidden(at.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
		}
	}
	return errs
}

// ValidateIngressClassUpdate checks a change of a class, whose controller stays.
func ValidateIngressClassUpdate(c, old *networkingv1.IngressClass) field.ErrorList {
	return append(ValidateIngressClass(c), immutable(c.Spec.Controller, old.Spec.Controller, field.NewPath("spec", "controller"))...)
}
