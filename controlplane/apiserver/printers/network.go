// Tables of the groups networking.k8s.io and discovery.k8s.io.

package printers

import (
	"slices"
	"strconv"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

func networkTable(gr schema.GroupResource) rest.TableConvertor {
	switch gr.Resource {
	case "endpointslices":
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
	case "networkpolicies":
		return newTable(gr, columns{nameColumn(), text("Pod-Selector", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"]), ageColumn()},
			func(o *networkingv1.NetworkPolicy, now time.Time) []any {
				return []any{o.Name, metav1.FormatLabelSelector(&o.Spec.PodSelector), age(o.CreationTimestamp, now)}
			})
	case "ingresses":
		return ingressTable(gr)
	case "ingressclasses":
		return ingressClassTable(gr)
	case "servicecidrs":
		return newTable(gr, columns{nameColumn(), text("CIDRs", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]), ageColumn()},
			func(o *networkingv1.ServiceCIDR, now time.Time) []any {
				return []any{o.Name, strings.Join(o.Spec.CIDRs, ","), age(o.CreationTimestamp, now)}
			})
	case "ipaddresses":
		return newTable(gr, columns{nameColumn(), text("ParentRef", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]), ageColumn()},
			func(o *networkingv1.IPAddress, now time.Time) []any {
				return []any{o.Name, parentOf(o.Spec.ParentRef), age(o.CreationTimestamp, now)}
			})
	default:
		return nil
	}
}

func parentOf(r *networkingv1.ParentReference) string {
	if r == nil {
		return none
	}
	parts := []string{schema.GroupResource{Group: r.Group, Resource: r.Resource}.String()}
	if r.Namespace != "" {
		parts = append(parts, r.Namespace)
	}
	return strings.Join(append(parts, r.Name), "/")
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
			o.Name, deref(o.Spec.IngressClassName, none), listed(hosts, "*"),
			strings.Join(slices.Compact(addresses), ","), ports, age(o.CreationTimestamp, now),
		}
	})
}

func ingressClassTable(gr schema.GroupResource) rest.TableConvertor {
	doc := networkingv1.IngressClassSpec{}.SwaggerDoc()
	return newTable(gr, columns{nameColumn(), text("Controller", doc["controller"]), text("Parameters", doc["parameters"]), ageColumn()},
		func(o *networkingv1.IngressClass, now time.Time) []any {
			parameters := none
			if p := o.Spec.Parameters; p != nil {
				parameters = p.Kind
				if g := deref(p.APIGroup, ""); g != "" {
					parameters += "." + g
				}
				parameters += "/" + p.Name
			}
			return []any{o.Name, o.Spec.Controller, parameters, age(o.CreationTimestamp, now)}
		})
}
