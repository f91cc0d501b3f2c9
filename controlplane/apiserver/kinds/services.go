// The kind Service.

package kinds

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func services() Kind {
	return of[corev1.Service, corev1.ServiceList](corev1.SchemeGroupVersion, "Service", "services", "service", Kind{
		short: []string{"svc"}, category: "all", status: true, upsert: true,
		fields: selecting(serviceFields), onUpdate: updating(dropBalanced),
		name:     apivalidation.NameIsDNSLabel,
		rules:    Rules{create(validateService), update(validateServiceUpdate), update(validateServiceStatusUpdate)},
		defaults: defaulting(defaultService),
		table:    serviceTable,
	})
}

func serviceFields(s *corev1.Service) fields.Set {
	return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
}

// dropBalanced takes the address of a load balancer from a service that wants none any more.
func dropBalanced(_ context.Context, s, _ *corev1.Service) {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
}

// defaultService sets what does not depend on the cluster. Addresses and families are
// allocated later; see ServiceAddresses.
func defaultService(o *corev1.Service) {
	s := &o.Spec
	set(&s.SessionAffinity, corev1.ServiceAffinityNone)
	switch s.SessionAffinity {
	case corev1.ServiceAffinityNone:
		s.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		setPtr(&s.SessionAffinityConfig, corev1.SessionAffinityConfig{})
		setPtr(&s.SessionAffinityConfig.ClientIP, corev1.ClientIPConfig{})
		setPtr(&s.SessionAffinityConfig.ClientIP.TimeoutSeconds, corev1.DefaultClientIPServiceAffinitySeconds)
	}
	set(&s.Type, corev1.ServiceTypeClusterIP)
	for i := range s.Ports {
		p := &s.Ports[i]
		set(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if externallyAccessible(s) {
		set(&s.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if s.Type == corev1.ServiceTypeExternalName {
		s.InternalTrafficPolicy = nil
	} else {
		setPtr(&s.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if s.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	setPtr(&s.AllocateLoadBalancerNodePorts, true)
	for i := range o.Status.LoadBalancer.Ingress {
		if in := &o.Status.LoadBalancer.Ingress[i]; in.IP != "" {
			setPtr(&in.IPMode, corev1.LoadBalancerIPModeVIP)
		}
	}
}

// externallyAccessible tells whether traffic from outside the cluster can
// reach the service at all.
func externallyAccessible(s *corev1.ServiceSpec) bool {
	switch s.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP:
		return len(s.ExternalIPs) > 0
	default:
		return false
	}
}

// ServiceAddresses makes the fields that describe a service's addresses agree:
// clusterIP is the first of clusterIPs, and a service of a single-stack
// cluster of the given family says so. Services of type ExternalName have
// neither. A strategy calls it in its prepare step, before and after it
// allocates an address.
func ServiceAddresses(o *corev1.Service, family corev1.IPFamily) {
	s := &o.Spec
	if s.Type == corev1.ServiceTypeExternalName {
		return
	}
	switch {
	case s.ClusterIP != "" && len(s.ClusterIPs) == 0:
		s.ClusterIPs = []string{s.ClusterIP}
	case s.ClusterIP == "" && len(s.ClusterIPs) > 0:
		s.ClusterIP = s.ClusterIPs[0]
	}
	// The endpoints of a headless service without a selector may be of both families.
	open := s.ClusterIP == corev1.ClusterIPNone && len(s.Selector) == 0
	if open {
		setPtr(&s.IPFamilyPolicy, corev1.IPFamilyPolicyRequireDualStack)
	}
	setPtr(&s.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack)
	if len(s.IPFamilies) == 0 {
		s.IPFamilies = []corev1.IPFamily{family}
	}
	if open && len(s.IPFamilies) == 1 && *s.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack {
		other := corev1.IPv6Protocol
		if s.IPFamilies[0] != corev1.IPv4Protocol {
			other = corev1.IPv4Protocol
		}
		s.IPFamilies = []corev1.IPFamily{s.IPFamilies[0], other}
	}
}

// maxAffinitySeconds is a day, the longest a client may stick to an endpoint.
const maxAffinitySeconds = 24 * 60 * 60

// validateService checks a service, with or without its addresses allocated.
func validateService(s *corev1.Service) field.ErrorList {
	return append(service(s), annotatedSources(s)...)
}

// service checks all of s but the annotation of its source ranges.
func service(s *corev1.Service) field.ErrorList {
	p := field.NewPath("spec")
	spec := &s.Spec
	errs := oneOf(spec.Type, p.Child("type"), corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)
	errs = append(errs, serviceType(spec, p)...)
	errs = append(errs, servicePorts(spec, p.Child("ports"))...)
	errs = append(errs, validLabels(spec.Selector, p.Child("selector"))...)
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

// validateServiceUpdate checks a change of a service. An address that clients
// know is theirs to keep for as long as the service has one.
func validateServiceUpdate(s, old *corev1.Service) field.ErrorList {
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

// validateServiceStatusUpdate checks where a load balancer says it can be
// reached.
func validateServiceStatusUpdate(s, _ *corev1.Service) field.ErrorList {
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

func serviceTable(gr schema.GroupResource) rest.TableConvertor {
	doc := corev1.ServiceSpec{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		text("Type", doc["type"]),
		text("Cluster-IP", doc["clusterIP"]),
		text("External-IP", doc["externalIPs"]),
		text("Port(s)", doc["ports"]),
		ageColumn(),
		selectorColumn(doc["selector"]),
	}, func(o *corev1.Service, now time.Time) []any {
		ip := o.Spec.ClusterIP
		if ip == "" && len(o.Spec.ClusterIPs) > 0 {
			ip = o.Spec.ClusterIPs[0]
		}
		return []any{
			o.Name, string(o.Spec.Type), or(ip, none), serviceExternalIP(o), servicePortsCell(o.Spec.Ports),
			age(o.CreationTimestamp, now), labelsCell(o.Spec.Selector),
		}
	})
}

func serviceExternalIP(o *corev1.Service) string {
	switch o.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return or(strings.Join(o.Spec.ExternalIPs, ","), none)
	case corev1.ServiceTypeLoadBalancer:
		var ingress []string
		for _, in := range o.Status.LoadBalancer.Ingress {
			if addr := or(in.IP, in.Hostname); addr != "" {
				ingress = append(ingress, addr)
			}
		}
		slices.Sort(ingress)
		ingress = append(slices.Compact(ingress), o.Spec.ExternalIPs...)
		return or(strings.Join(ingress, ","), "<pending>")
	case corev1.ServiceTypeExternalName:
		return o.Spec.ExternalName
	default:
		return unknown
	}
}

func servicePortsCell(ports []corev1.ServicePort) string {
	cells := make([]string, len(ports))
	for i, p := range ports {
		if p.NodePort > 0 {
			cells[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		} else {
			cells[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		}
	}
	return or(strings.Join(cells, ","), none)
}
