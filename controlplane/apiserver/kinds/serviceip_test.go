package kinds

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

func TestServiceCIDR(t *testing.T) {
	type sc = *networkingv1.ServiceCIDR
	cidrs := func(list ...string) func(sc) { return func(c sc) { c.Spec.CIDRs = list } }
	good := func() sc {
		return defaulted[networkingv1.ServiceCIDR](t, `{metadata: {name: c}, spec: {cidrs: [10.96.0.0/12]}}`)
	}
	mutate(t, good, validateServiceCIDR, []mutation[sc]{
		{"one", func(sc) {}, nil},
		{"one of each family", cidrs("10.96.0.0/12", "fd00::/108"), nil},
		{"none", cidrs(), bad("spec.cidrs: Required value: at least one CIDR required")},
		{"three", cidrs("10.0.0.0/24", "fd00::/108", "10.1.0.0/24"), bad("spec.cidrs: Invalid value")},
		{"two of a family", cidrs("10.0.0.0/24", "10.1.0.0/24"), bad("spec.cidrs: Invalid value")},
		{"no range", cidrs("10.96.0.0"), bad("spec.cidrs[0]: Invalid value")},
		{"not canonical", cidrs("10.96.0.1/12"), bad("spec.cidrs[0]: Invalid value")},
	})
	mutateUpdate(t, good, validateServiceCIDRUpdate, []mutation[sc]{
		{"the same", func(sc) {}, nil},
		{"a second family", cidrs("10.96.0.0/12", "fd00::/108"), nil},
		{"a second of its family", cidrs("10.96.0.0/12", "10.1.0.0/24"), bad("spec.cidrs: Invalid value")},
		{"another", cidrs("10.97.0.0/16"), bad("spec.cidrs: Invalid value")},
	})
}

func TestIPAddress(t *testing.T) {
	type ia = *networkingv1.IPAddress
	const at = "spec.parentRef"
	good := func() ia {
		return defaulted[networkingv1.IPAddress](t, `{metadata: {name: 10.96.0.1}, spec: {parentRef: {resource: services, namespace: default, name: kubernetes}}}`)
	}
	mutate(t, good, validateIPAddress, []mutation[ia]{
		{"of a service", func(ia) {}, nil},
		{"of what has no namespace", func(a ia) { a.Spec.ParentRef.Namespace = "" }, nil},
		{"of nothing", func(a ia) { a.Spec.ParentRef = nil }, bad(at + ": Required value")},
		{"of no kind", func(a ia) { a.Spec.ParentRef.Resource = "" }, bad(at + ".resource: Required value")},
		{"of no name", func(a ia) { a.Spec.ParentRef.Name = "" }, bad(at + ".name: Required value")},
		{"a bad group", func(a ia) { a.Spec.ParentRef.Group = "A/b" }, bad(at + ".group: Invalid value")},
		{"a bad name", func(a ia) { a.Spec.ParentRef.Name = "a/b" }, bad(at + ".name: Invalid value")},
	})
	mutateUpdate(t, good, validateIPAddressUpdate, []mutation[ia]{
		{"another parent", func(a ia) { a.Spec.ParentRef.Name = "other" }, bad(at + ": Invalid value")},
	})
}
