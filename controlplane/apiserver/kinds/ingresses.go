// The kind Ingress.

package kinds

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func ingresses() Kind {
	return of[networkingv1.Ingress, networkingv1.IngressList](networkingv1.SchemeGroupVersion, "Ingress", "ingresses", "ingress", Kind{
		short: []string{"ing"}, status: true, generation: true,
		rules:    Rules{create(newIngress), anew(validateIngress), anew(validateIngressStatus)},
		warnings: warningOf(ingressWarnings),
		table:    ingressTable,
	})
}

// ingressClassAnnotation is what named the class of an ingress before there was a field for it.
const ingressClassAnnotation = "kubernetes.io/ingress.class"

// ingressWarnings warns of a class that is told as it was before there was a field for it.
func ingressWarnings(w *warnings, o, old *networkingv1.Ingress) {
	if _, is := o.Annotations[ingressClassAnnotation]; old == nil && is && o.Spec.IngressClassName == nil {
		w.add("annotation %q is deprecated, please use 'spec.ingressClassName' instead", ingressClassAnnotation)
	}
}

// newIngress checks an ingress that is about to be made.
func newIngress(o *networkingv1.Ingress) field.ErrorList {
	errs := validateIngress(o)
	if class, is := o.Annotations[ingressClassAnnotation]; is && o.Spec.IngressClassName != nil && class != *o.Spec.IngressClassName {
		errs = append(errs, field.Invalid(field.NewPath("annotations").Child(ingressClassAnnotation), class, "must match `ingressClassName` when both are specified"))
	}
	return errs
}

// validateIngress checks an ingress.
func validateIngress(o *networkingv1.Ingress) field.ErrorList {
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

// validateIngressStatus checks where an ingress says it can be reached.
func validateIngressStatus(o *networkingv1.Ingress) field.ErrorList {
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

func ingressTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		text("Class", "The name of the IngressClass resource that should be used for additional configuration"),
		text("Hosts", "Hosts that incoming requests are matched against before the ingress rule"),
		text("Address", "Address is a list containing ingress points for the load-balancer"),
		text("Ports", "Ports of TLS configurations that open"),
		ageColumn(),
	}, func(o *networkingv1.Ingress, now time.Time) []any {
		var hosts, addresses []string
		for _, r := range o.Spec.Rules {
			if r.Host != "" {
				hosts = append(hosts, r.Host)
			}
		}
		for _, in := range o.Status.LoadBalancer.Ingress {
			if a := or(in.IP, in.Hostname); a != "" {
				addresses = append(addresses, a)
			}
		}
		slices.Sort(addresses)
		ports := "80"
		if len(o.Spec.TLS) > 0 {
			ports = "80, 443"
		}
		return []any{
			o.Name, derefOr(o.Spec.IngressClassName, none), listed(hosts, "*"),
			strings.Join(slices.Compact(addresses), ","), ports, age(o.CreationTimestamp, now),
		}
	})
}
