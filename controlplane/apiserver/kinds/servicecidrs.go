// The kind ServiceCIDR.

package kinds

import (
	"net/netip"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func serviceCIDRs() Kind {
	return of[networkingv1.ServiceCIDR, networkingv1.ServiceCIDRList](networkingv1.SchemeGroupVersion, "ServiceCIDR", "servicecidrs", "servicecidr", Kind{
		cluster: true, status: true,
		rules: Rules{Create: create(validateServiceCIDR), Update: update(validateServiceCIDRUpdate)},
		table: serviceCIDRTable,
	})
}

// validateServiceCIDR checks a range, or one of each family.
func validateServiceCIDR(c *networkingv1.ServiceCIDR) field.ErrorList {
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

// validateServiceCIDRUpdate checks a change: a range of one family may get one of the
// other.
func validateServiceCIDRUpdate(c, old *networkingv1.ServiceCIDR) field.ErrorList {
	is, was := c.Spec.CIDRs, old.Spec.CIDRs
	if len(is) == 2 && len(was) == 1 && is[0] == was[0] {
		return validateServiceCIDR(c)
	}
	return immutable(is, was, field.NewPath("spec", "cidrs"))
}

func serviceCIDRTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{nameColumn(), text("CIDRs", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]), ageColumn()},
		func(o *networkingv1.ServiceCIDR, now time.Time) []any {
			return []any{o.Name, strings.Join(o.Spec.CIDRs, ","), age(o.CreationTimestamp, now)}
		})
}
