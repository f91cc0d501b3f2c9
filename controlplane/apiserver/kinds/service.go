// Rules for services.

package kinds

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxAffinitySeconds is a day, the longest a client may stick to an endpoint.
const maxAffinitySeconds = 24 * 60 * 60

// ValidateService checks a service, with or without its addresses allocated.
func ValidateService(s *corev1.Service) field.ErrorList {
	return append(service(s), annotatedSources(s)...)
}

// service checks all of s but the annotation of its source ranges.
func service(s *corev1.Service) field.ErrorList {
	p := field.NewPath("spec")
	spec := &s.Spec
	errs := oneOf(spec.Type, p.Child("type"), corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)
	errs = append(errs, serviceType(spec, p)...)
	errs = append(errs, servicePorts(spec, p.Child("ports"))...)
	errs = append(errs, labels(spec.Selector, p.Child("selector"))...)
	errs = append(errs, sessionAffinity(spec, p)...)
	errs = append(errs, clusterIPs(spec, p)...)
	for i, a := range spec.ExternalIPs {
		at := p.Child("externalIPs").Index(i)
		if bad := ip(a, at); len(bad) > 0 {
			errs = append(errs, bad...)
		} else {
			errs = append(errs, unicastIP(a, at)...)
		}
	}
	return append(errs, servicePolicies(spec, p)...)
}

func serviceType(s *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	headless := s.ClusterIP == corev1.ClusterIPNone || len(s.ClusterIPs) > 0 && s.ClusterIPs[0] == corev1.ClusterIPNone
	switch s.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if headless {
			errs = append(errs, field.Invalid(p.Child("clusterIPs").Index(0), s.ClusterIPs, fmt.Sprintf("may not be set to 'None' for %s services", s.Type)))
		}
	case corev1.ServiceTypeExternalName:
		if len(s.ClusterIPs) > 0 || s.ClusterIP != "" {
			errs = append(errs, field.Forbidden(p.Child("clusterIPs"), "may not be set when `type` is 'ExternalName'"))
		}
		name := strings.TrimSuffix(s.ExternalName, ".")
		if name == "" {
			return append(errs, field.Required(p.Child("externalName"), ""))
		}
		return append(errs, dnsSubdomain(name, p.Child("externalName"))...)
	}
	if len(s.Ports) == 0 && !headless {
		errs = append(errs, field.Required(p.Child("ports"), ""))
	}
	return errs
}

func servicePorts(s *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	names, ports, nodePorts := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i, port := range s.Ports {
		at := p.Index(i)
		switch {
		case port.Name == "" && len(s.Ports) > 1:
			errs = append(errs, field.Required(at.Child("name"), ""))
		case port.Name != "":
			errs = append(errs, dnsLabel(port.Name, at.Child("name"))...)
			if names[port.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
			}
			names[port.Name] = true
		}
		errs = append(errs, portNumber(port.Port, at.Child("port"))...)
		errs = append(errs, protocol(port.Protocol, at.Child("protocol"))...)
		errs = append(errs, portNumberOrName(port.TargetPort, at.Child("targetPort"))...)
		if port.AppProtocol != nil {
			errs = append(errs, qualifiedName(*port.AppProtocol, at.Child("appProtocol"))...)
		}
		key := fmt.Sprintf("%d/%s", port.Port, port.Protocol)
		if ports[key] {
			errs = append(errs, field.Duplicate(at, corev1.ServicePort{Port: port.Port, Protocol: port.Protocol}))
		}
		ports[key] = true
		if port.NodePort == 0 {
			continue
		}
		errs = append(errs, portNumber(port.NodePort, at.Child("nodePort"))...)
		if s.Type == corev1.ServiceTypeClusterIP {
			errs = append(errs, field.Forbidden(at.Child("nodePort"), fmt.Sprintf("may not be used when `type` is '%s'", s.Type)))
		}
		key = fmt.Sprintf("%d/%s", port.NodePort, port.Protocol)
		if nodePorts[key] {
			errs = append(errs, field.Duplicate(at.Child("nodePort"), port.NodePort))
		}
		nodePorts[key] = true
	}
	return errs
}

func sessionAffinity(s *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	errs := oneOf(s.SessionAffinity, p.Child("sessionAffinity"), corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	at := p.Child("sessionAffinityConfig")
	switch s.SessionAffinity {
	case corev1.ServiceAffinityNone:
		if s.SessionAffinityConfig != nil {
			errs = append(errs, field.Forbidden(at, "must not be set when session affinity is None"))
		}
	case corev1.ServiceAffinityClientIP:
		c := s.SessionAffinityConfig
		if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			return append(errs, field.Required(at, "when session affinity type is ClientIP"))
		}
		if t := *c.ClientIP.TimeoutSeconds; t <= 0 || t > maxAffinitySeconds {
			errs = append(errs, field.Invalid(at.Child("clientIP", "timeoutSeconds"), t, fmt.Sprintf("must be greater than 0 and less than %d", maxAffinitySeconds)))
		}
	}
	return errs
}

// clusterIPs checks the addresses and the families they belong to.
func clusterIPs(s *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	at := p.Child("clusterIPs")
	var errs field.ErrorList
	if len(s.ClusterIPs) > 0 && s.ClusterIP != s.ClusterIPs[0] {
		errs = append(errs, field.Invalid(at.Index(0), s.ClusterIPs, "first value must match `clusterIP`"))
	}
	for i, a := range s.ClusterIPs {
		if a == corev1.ClusterIPNone {
			if i > 0 || len(s.ClusterIPs) > 1 {
				errs = append(errs, field.Invalid(at, s.ClusterIPs, "'None' must be the first and only value"))
			}
			continue
		}
		errs = append(errs, ip(a, at.Index(i))...)
	}
	if len(s.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(at, s.ClusterIPs, "may only hold up to 2 values"))
	}
	seen := map[corev1.IPFamily]bool{}
	for i, f := range s.IPFamilies {
		errs = append(errs, oneOf(f, p.Child("ipFamilies").Index(i), corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if seen[f] {
			errs = append(errs, field.Duplicate(p.Child("ipFamilies").Index(i), f))
		}
		seen[f] = true
	}
	return append(errs, optionalOneOf(s.IPFamilyPolicy, p.Child("ipFamilyPolicy"),
		corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)...)
}

// onlyBalanced refuses what other types of services cannot have.
const onlyBalanced = "may only be used when `type` is 'LoadBalancer'"

func servicePolicies(s *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	balanced := s.Type == corev1.ServiceTypeLoadBalancer
	reachable := balanced || s.Type == corev1.ServiceTypeNodePort || s.Type == corev1.ServiceTypeClusterIP && len(s.ExternalIPs) > 0
	at := p.Child("externalTrafficPolicy")
	switch {
	case s.ExternalTrafficPolicy != "" && !reachable:
		errs = append(errs, field.Invalid(at, s.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
	case reachable:
		errs = append(errs, oneOf(s.ExternalTrafficPolicy, at, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	}
	errs = append(errs, optionalOneOf(s.InternalTrafficPolicy, p.Child("internalTrafficPolicy"),
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	errs = append(errs, optionalOneOf(s.TrafficDistribution, p.Child("trafficDistribution"),
		corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameNode, corev1.ServiceTrafficDistributionPreferSameZone)...)
	errs = append(errs, healthPort(s, p.Child("healthCheckNodePort"))...)
	if len(s.LoadBalancerSourceRanges) > 0 && !balanced {
		errs = append(errs, field.Forbidden(p.Child("loadBalancerSourceRanges"), onlyBalanced))
	}
	for i, c := range s.LoadBalancerSourceRanges {
		errs = append(errs, cidr(strings.TrimSpace(c), p.Child("loadBalancerSourceRanges").Index(i))...)
	}
	if s.AllocateLoadBalancerNodePorts != nil && !balanced {
		errs = append(errs, field.Forbidden(p.Child("allocateLoadBalancerNodePorts"), onlyBalanced))
	}
	if s.LoadBalancerClass != nil {
		if !balanced {
			errs = append(errs, field.Forbidden(p.Child("loadBalancerClass"), onlyBalanced))
		}
		errs = append(errs, qualifiedName(*s.LoadBalancerClass, p.Child("loadBalancerClass"))...)
	}
	return errs
}

// healthPort checks the port at which nodes say whether they have endpoints.
func healthPort(s *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	switch {
	case s.HealthCheckNodePort == 0:
		return nil
	case s.Type != corev1.ServiceTypeLoadBalancer || s.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal:
		return field.ErrorList{field.Invalid(p, s.HealthCheckNodePort, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'")}
	}
	return portNumber(s.HealthCheckNodePort, p)
}

// annotatedSources checks the annotation that stands in for loadBalancerSourceRanges.
func annotatedSources(s *corev1.Service) field.ErrorList {
	text, is := s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	if !is || len(s.Spec.LoadBalancerSourceRanges) > 0 {
		return nil
	}
	p := field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
	var errs field.ErrorList
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		errs = append(errs, field.Forbidden(p, onlyBalanced))
	}
	if strings.TrimSpace(text) == "" {
		return errs
	}
	for c := range strings.SplitSeq(text, ",") {
		errs = append(errs, cidr(strings.TrimSpace(c), p)...)
	}
	return errs
}

// ValidateServiceUpdate checks a change of a service. An address that clients
// know is theirs to keep for as long as the service has one.
func ValidateServiceUpdate(s, old *corev1.Service) field.ErrorList {
	p := field.NewPath("spec")
	var errs field.ErrorList
	both := s.Spec.Type != corev1.ServiceTypeExternalName && old.Spec.Type != corev1.ServiceTypeExternalName
	if both && len(old.Spec.ClusterIPs) > 0 && (len(s.Spec.ClusterIPs) == 0 || s.Spec.ClusterIPs[0] != old.Spec.ClusterIPs[0]) {
		errs = append(errs, field.Invalid(p.Child("clusterIPs").Index(0), s.Spec.ClusterIPs, "may not change once set"))
	}
	if both && len(old.Spec.IPFamilies) > 0 && len(s.Spec.IPFamilies) > 0 && s.Spec.IPFamilies[0] != old.Spec.IPFamilies[0] {
		errs = append(errs, field.Invalid(p.Child("ipFamilies").Index(0), s.Spec.IPFamilies, "may not change once set"))
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && old.Spec.Type == corev1.ServiceTypeLoadBalancer {
		errs = append(errs, immutable(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass, p.Child("loadBalancerClass"))...)
	}
	if had := old.Spec.HealthCheckNodePort; had != 0 && s.Spec.HealthCheckNodePort != 0 && s.Spec.HealthCheckNodePort != had {
		errs = append(errs, field.Invalid(p.Child("healthCheckNodePort"), s.Spec.HealthCheckNodePort, "cannot change healthCheckNodePort on loadBalancer service with externalTraffic=Local during update"))
	}
	const key = corev1.AnnotationLoadBalancerSourceRangesKey
	if s.Annotations[key] != old.Annotations[key] || s.Spec.Type != old.Spec.Type { // else it may be older than its rule
		errs = append(errs, annotatedSources(s)...)
	}
	return append(errs, service(s)...)
}

// ValidateServiceStatusUpdate checks where a load balancer says it can be
// reached.
func ValidateServiceStatusUpdate(s, _ *corev1.Service) field.ErrorList {
	p := field.NewPath("status", "loadBalancer", "ingress")
	var errs field.ErrorList
	if len(s.Status.LoadBalancer.Ingress) > 0 && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		errs = append(errs, field.Forbidden(p, "may only be used when `spec.type` is LoadBalancer"))
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		at := p.Index(i)
		if in.IP != "" {
			errs = append(errs, ip(in.IP, at.Child("ip"))...)
		}
		if in.IP == "" && in.IPMode != nil {
			errs = append(errs, field.Forbidden(at.Child("ipMode"), "may not be specified when `ip` is not set"))
		}
		errs = append(errs, optionalOneOf(in.IPMode, at.Child("ipMode"), corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)...)
		errs = append(errs, ingressHostname(in.Hostname, at.Child("hostname"))...)
	}
	return errs // conditions are not looked at
}

// ingressHostname wants a name where an address would be a mistake.
func ingressHostname(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	errs := dnsSubdomain(name, p)
	if len(validation.IsValidIPForLegacyField(p, name, false, nil)) == 0 {
		errs = append(errs, field.Invalid(p, name, "must be a DNS name, not an IP address"))
	}
	return errs
}
