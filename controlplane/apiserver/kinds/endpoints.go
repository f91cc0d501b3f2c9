// The kind Endpoints.

package kinds

import (
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func endpoints() Kind {
	return of[corev1.Endpoints, corev1.EndpointsList](corev1.SchemeGroupVersion, "Endpoints", "endpoints", "endpoints", Kind{ //nolint:staticcheck // old clients read it still
		short: []string{"ep"}, upsert: true,
		rules:    Rules{Create: create(validateEndpoints), Update: anew(validateEndpoints)},
		defaults: defaulting(defaultEndpoints),
		table:    endpointsTable,
	})
}

func defaultEndpoints(o *corev1.Endpoints) { //nolint:staticcheck // clients still use the kind
	for i := range o.Subsets {
		for j := range o.Subsets[i].Ports {
			set(&o.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
		}
	}
}

// validateEndpoints checks the subsets of an Endpoints object.
func validateEndpoints(e *corev1.Endpoints) field.ErrorList { //nolint:staticcheck // clients still use the kind
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

func endpointsTable(gr schema.GroupResource) rest.TableConvertor {
	doc := corev1.Endpoints{}.SwaggerDoc() //nolint:staticcheck // clients still use the kind
	return newTable(gr, columns{nameColumn(), text("Endpoints", doc["subsets"]), ageColumn()},
		func(o *corev1.Endpoints, now time.Time) []any { //nolint:staticcheck // clients still use the kind
			return []any{o.Name, endpointsCell(o), age(o.CreationTimestamp, now)}
		})
}

// endpointsCell lists ready addresses; those without a port, as a headless
// service can have, by the address alone.
func endpointsCell(o *corev1.Endpoints) string { //nolint:staticcheck // clients still use the kind
	var list []string
	for _, s := range o.Subsets {
		for _, a := range s.Addresses {
			if len(s.Ports) == 0 {
				list = append(list, a.IP)
			}
		}
		for _, p := range s.Ports {
			for _, a := range s.Addresses {
				list = append(list, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	return listed(list, none)
}
