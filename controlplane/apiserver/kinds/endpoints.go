// Rules for endpoints and endpoint slices.

package kinds

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// Bounds of an endpoint slice.
const (
	maxEndpoints       = 1000
	maxEndpointPorts   = 20000
	maxAddressesOfOne  = 100
	maxZoneHints       = 8
	maxNodeHints       = 8
	maxTopologyEntries = 16
)

// ValidateEndpoints checks the subsets of an Endpoints object.
func ValidateEndpoints(e *corev1.Endpoints) field.ErrorList { //nolint:staticcheck // clients still use the kind
	var errs field.ErrorList
	for i := range e.Subsets {
		s, p := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses) == 0 && len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(p, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range s.Addresses {
			errs = append(errs, endpointAddress(&s.Addresses[j], p.Child("addresses").Index(j))...)
		}
		for j := range s.NotReadyAddresses {
			errs = append(errs, endpointAddress(&s.NotReadyAddresses[j], p.Child("notReadyAddresses").Index(j))...)
		}
		for j, port := range s.Ports {
			at := p.Child("ports").Index(j)
			if port.Name == "" {
				if len(s.Ports) > 1 {
					errs = append(errs, field.Required(at.Child("name"), ""))
				}
			} else {
				errs = append(errs, dnsLabel(port.Name, at.Child("name"))...)
			}
			errs = append(errs, portNumber(port.Port, at.Child("port"))...)
			errs = append(errs, protocol(port.Protocol, at.Child("protocol"))...)
			if port.AppProtocol != nil {
				errs = append(errs, qualifiedName(*port.AppProtocol, at.Child("appProtocol"))...)
			}
		}
	}
	return errs
}

func endpointAddress(a *corev1.EndpointAddress, p *field.Path) field.ErrorList {
	errs := ip(a.IP, p.Child("ip"))
	if len(errs) == 0 {
		errs = append(errs, unicastIP(a.IP, p.Child("ip"))...)
	}
	if a.Hostname != "" {
		errs = append(errs, dnsLabel(a.Hostname, p.Child("hostname"))...)
	}
	if a.NodeName != nil {
		errs = append(errs, dnsSubdomain(*a.NodeName, p.Child("nodeName"))...)
	}
	return errs
}

// ValidateEndpointSlice checks an endpoint slice.
func ValidateEndpointSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	errs := oneOf(s.AddressType, field.NewPath("addressType"), discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)
	p := field.NewPath("endpoints")
	if n := len(s.Endpoints); n > maxEndpoints {
		return append(errs, field.TooMany(p, n, maxEndpoints))
	}
	for i := range s.Endpoints {
		errs = append(errs, endpoint(&s.Endpoints[i], s.AddressType, p.Index(i))...)
	}
	return append(errs, endpointPorts(s.Ports, field.NewPath("ports"))...)
}

func endpoint(e *discoveryv1.Endpoint, t discoveryv1.AddressType, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := p.Child("addresses")
	switch n := len(e.Addresses); {
	case n == 0:
		errs = append(errs, field.Required(at, "must contain at least 1 address"))
	case n > maxAddressesOfOne:
		return append(errs, field.TooMany(at, n, maxAddressesOfOne))
	}
	for i, a := range e.Addresses {
		errs = append(errs, sliceAddress(a, t, at.Index(i))...)
	}
	if e.NodeName != nil {
		errs = append(errs, dnsSubdomain(*e.NodeName, p.Child("nodeName"))...)
	}
	if n := len(e.DeprecatedTopology); n > maxTopologyEntries {
		errs = append(errs, field.TooMany(p.Child("deprecatedTopology"), n, maxTopologyEntries))
	}
	errs = append(errs, labels(e.DeprecatedTopology, p.Child("deprecatedTopology"))...)
	if e.Hostname != nil {
		errs = append(errs, dnsLabel(*e.Hostname, p.Child("hostname"))...)
	}
	if h := e.Hints; h != nil {
		at := p.Child("hints")
		if n := len(h.ForZones); n > maxZoneHints {
			errs = append(errs, field.TooMany(at.Child("forZones"), n, maxZoneHints))
		}
		if n := len(h.ForNodes); n > maxNodeHints {
			errs = append(errs, field.TooMany(at.Child("forNodes"), n, maxNodeHints))
		}
	}
	return errs
}

func sliceAddress(a string, t discoveryv1.AddressType, p *field.Path) field.ErrorList {
	switch t {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
		errs := ip(a, p)
		if len(errs) == 0 {
			errs = append(errs, unicastIP(a, p)...)
		}
		if len(errs) == 0 && familyOf(a) != t {
			errs = append(errs, field.Invalid(p, a, "must be an "+string(t)+" address"))
		}
		return errs
	case discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(p, a)
	default:
		return nil // reported with the type
	}
}

func endpointPorts(ports []discoveryv1.EndpointPort, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n := len(ports); n > maxEndpointPorts {
		return append(errs, field.TooMany(p, n, maxEndpointPorts))
	}
	names := map[string]bool{}
	for i, port := range ports {
		at := p.Index(i)
		name := deref(port.Name)
		if name != "" {
			errs = append(errs, dnsLabel(name, at.Child("name"))...)
		}
		if names[name] {
			errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
		}
		names[name] = true
		errs = append(errs, protocol(deref(port.Protocol), at.Child("protocol"))...)
		if port.Port != nil {
			errs = append(errs, portNumber(*port.Port, at.Child("port"))...)
		}
		if port.AppProtocol != nil {
			errs = append(errs, qualifiedName(*port.AppProtocol, at.Child("appProtocol"))...)
		}
	}
	return errs
}

// ValidateEndpointSliceUpdate checks a change of a slice, whose address type
// is for good.
func ValidateEndpointSliceUpdate(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	return append(ValidateEndpointSlice(s), immutable(s.AddressType, old.AddressType, field.NewPath("addressType"))...)
}

func familyOf(a string) discoveryv1.AddressType {
	if netutils.IsIPv6String(a) {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}
