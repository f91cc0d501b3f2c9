// The kind EndpointSlice.

package kinds

import (
	"context"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	netutils "k8s.io/utils/net"
)

func endpointSlices() Kind {
	return of[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](discoveryv1.SchemeGroupVersion, "EndpointSlice", "endpointslices", "endpointslice", Kind{
		onCreate: creating(newEndpointSlice), onUpdate: updating(updateEndpointSlice),
		rules:    Rules{Create: create(validateEndpointSlice), Update: update(validateEndpointSliceUpdate)},
		defaults: defaulting(defaultEndpointSlice),
		table:    endpointSliceTable,
	})
}

func newEndpointSlice(_ context.Context, s *discoveryv1.EndpointSlice) {
	s.Generation = 1
	dropTopology(s, nil)
}

// updateEndpointSlice counts the generation by hand: an EndpointSlice has no spec.
func updateEndpointSlice(_ context.Context, s, old *discoveryv1.EndpointSlice) {
	was, is := *old, *s
	was.ObjectMeta, is.ObjectMeta = metav1.ObjectMeta{Labels: old.Labels}, metav1.ObjectMeta{Labels: s.Labels}
	was.TypeMeta, is.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
	if !equality.Semantic.DeepEqual(was, is) || !labels.Equals(old.Labels, s.Labels) {
		s.Generation = old.Generation + 1
	}
	if !equality.Semantic.DeepEqual(old.Endpoints, s.Endpoints) {
		dropTopology(s, old.Endpoints)
	}
}

// dropTopology takes the labels from endpoints, which only an API that is gone could write. The
// name of a node that was stored as such a label is kept.
func dropTopology(s *discoveryv1.EndpointSlice, old []discoveryv1.Endpoint) {
	stored := map[string]bool{}
	for i := range old {
		if node, named := old[i].DeprecatedTopology[corev1.LabelHostname]; named {
			stored[node] = true
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		node, named := e.DeprecatedTopology[corev1.LabelHostname]
		e.DeprecatedTopology = nil
		if !named || e.NodeName != nil || len(validation.IsDNS1123Subdomain(node)) > 0 {
			continue
		}
		if stored[node] {
			e.NodeName = &node
		}
	}
}

func defaultEndpointSlice(o *discoveryv1.EndpointSlice) {
	for i := range o.Ports {
		setPtr(&o.Ports[i].Name, "")
		setPtr(&o.Ports[i].Protocol, corev1.ProtocolTCP)
	}
}

// Bounds of an endpoint slice.
const (
	maxEndpoints       = 1000
	maxEndpointPorts   = 20000
	maxAddressesOfOne  = 100
	maxZoneHints       = 8
	maxNodeHints       = 8
	maxTopologyEntries = 16
)

// validateEndpointSlice checks an endpoint slice.
func validateEndpointSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
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
	errs = append(errs, validLabels(e.DeprecatedTopology, p.Child("deprecatedTopology"))...)
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

// validateEndpointSliceUpdate checks a change of a slice, whose address type
// is for good.
func validateEndpointSliceUpdate(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	return append(validateEndpointSlice(s), immutable(s.AddressType, old.AddressType, field.NewPath("addressType"))...)
}

func familyOf(a string) discoveryv1.AddressType {
	if netutils.IsIPv6String(a) {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

func endpointSliceTable(gr schema.GroupResource) rest.TableConvertor {
	doc := discoveryv1.EndpointSlice{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		text("AddressType", doc["addressType"]),
		text("Ports", doc["ports"]),
		text("Endpoints", doc["endpoints"]),
		ageColumn(),
	}, func(o *discoveryv1.EndpointSlice, now time.Time) []any {
		return []any{o.Name, string(o.AddressType), slicePorts(o.Ports), sliceEndpoints(o.Endpoints), age(o.CreationTimestamp, now)}
	})
}

func slicePorts(ports []discoveryv1.EndpointPort) string {
	var list []string
	for _, p := range ports {
		switch {
		case p.Port != nil:
			list = append(list, strconv.Itoa(int(*p.Port)))
		case p.Name != nil:
			list = append(list, or(*p.Name, "*"))
		default:
			list = append(list, "*")
		}
	}
	return listed(list, unset)
}

func sliceEndpoints(endpoints []discoveryv1.Endpoint) string {
	var list []string
	for _, e := range endpoints {
		list = append(list, e.Addresses...)
	}
	return listed(list, unset)
}
