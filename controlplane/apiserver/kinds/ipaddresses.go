// The kind IPAddress.

package kinds

import (
	"net/netip"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func ipAddresses() Kind {
	return of[networkingv1.IPAddress, networkingv1.IPAddressList](networkingv1.SchemeGroupVersion, "IPAddress", "ipaddresses", "ipaddress", Kind{
		short: []string{"ip"}, cluster: true,
		name:  ipName,
		rules: Rules{Create: create(validateIPAddress), Update: update(validateIPAddressUpdate)},
		table: ipAddressTable,
	})
}

// ipName wants an IP address in canonical form. No prefix can be one.
func ipName(name string, prefix bool) []string {
	if a, err := netip.ParseAddr(name); prefix || err != nil || a.Zone() != "" || a.String() != name {
		return []string{"must be a canonical form IP address"}
	}
	return nil
}

// validateIPAddress checks what an address belongs to.
func validateIPAddress(a *networkingv1.IPAddress) field.ErrorList {
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

// validateIPAddressUpdate checks a change of an address, which stays whose it is.
func validateIPAddressUpdate(a, old *networkingv1.IPAddress) field.ErrorList {
	return append(validateIPAddress(a), immutable(a.Spec.ParentRef, old.Spec.ParentRef, field.NewPath("spec", "parentRef"))...)
}

func ipAddressTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{nameColumn(), text("ParentRef", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]), ageColumn()},
		func(o *networkingv1.IPAddress, now time.Time) []any {
			return []any{o.Name, parentOf(o.Spec.ParentRef), age(o.CreationTimestamp, now)}
		})
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
