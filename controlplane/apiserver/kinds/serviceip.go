// Rules for the ranges that services get addresses from, and for single such addresses.

package kinds

import (
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateServiceCIDR checks a range, or one of each family.
func ValidateServiceCIDR(c *networkingv1.ServiceCIDR) field.ErrorList {
	p := field.NewPath("spec", "cidrs")
	switch n := len(c.Spec.CIDRs); {
	case n == 0:
		return field.ErrorList{field.Required(p, "at least one CIDR required")}
	case n > 2:
		return field.ErrorList{field.Invalid(p, c.Spec.CIDRs, "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	families := make(map[bool]bool, 2)
	for i, text := range c.Spec.CIDRs {
		parsed, err := netip.ParsePrefix(text)
		if err != nil || parsed.Masked().String() != text {
			errs = append(errs, field.Invalid(p.Index(i), text, "must be a CIDR in canonical form, (e.g. 10.9.8.0/24 or 2001:db8::/64)"))
			continue
		}
		if families[parsed.Addr().Is4()] {
			errs = append(errs, field.Invalid(p, c.Spec.CIDRs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
		}
		families[parsed.Addr().Is4()] = true
	}
	return errs
}

// ValidateServiceCIDRUpdate checks a change: a range of one family may get one of the
// other.
func ValidateServiceCIDRUpdate(c, old *networkingv1.ServiceCIDR) field.ErrorList {
	is, was := c.Spec.CIDRs, old.Spec.CIDRs
	if len(is) == 2 && len(was) == 1 && is[0] == was[0] {
		return ValidateServiceCIDR(c)
	}
	return immutable(is, was, field.NewPath("spec", "cidrs"))
}

// ValidateIPAddress checks what an address belongs to.
func ValidateIPAddress(a *networkingv1.IPAddress) field.ErrorList {
	p := field.NewPath("spec", "parentRef")
	r := a.Spec.ParentRef
	if r == nil {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	if r.Group != "" {
		errs = append(errs, dnsSubdomain(r.Group, p.Child("group"))...)
	}
	for _, f := range []struct {
		name, value string
		optional    bool
	}{{"resource", r.Resource, false}, {"name", r.Name, false}, {"namespace", r.Namespace, true}} {
		if f.value == "" {
			if !f.optional {
				errs = append(errs, field.Required(p.Child(f.name), ""))
			}
			continue
		}
		errs = append(errs, messages(p.Child(f.name), f.value, content.IsPathSegmentName(f.value))...)
	}
	return errs
}

// ValidateIPAddressUpdate checks a change of an address, which stays whose it is.
func ValidateIPAddressUpdate(a, old *networkingv1.IPAddress) field.ErrorList {
	return append(ValidateIPAddress(a), immutable(a.Spec.ParentRef, old.Spec.ParentRef, field.NewPath("spec", "parentRef"))...)
}
