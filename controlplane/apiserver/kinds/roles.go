// The kind Role.

package kinds

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func roles() Kind {
	return of[rbacv1.Role, rbacv1.RoleList](rbacv1.SchemeGroupVersion, "Role", "roles", "role", Kind{
		upsert: true,
		name:   pathSegment,
		rules:  Rules{Create: create(validateRole), Update: anew(validateRole)},
	})
}

// validateRole checks a role of a namespace.
func validateRole(r *rbacv1.Role) field.ErrorList { return policyRules(r.Rules, true) }

func policyRules(rules []rbacv1.PolicyRule, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range rules {
		r, p := &rules[i], field.NewPath("rules").Index(i)
		if len(r.Verbs) == 0 {
			errs = append(errs, field.Required(p.Child("verbs"), "verbs must contain at least one value"))
		}
		if len(r.NonResourceURLs) > 0 {
			if namespaced {
				errs = append(errs, field.Invalid(p.Child("nonResourceURLs"), r.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs"))
			}
			if len(r.APIGroups)+len(r.Resources)+len(r.ResourceNames) > 0 {
				errs = append(errs, field.Invalid(p.Child("nonResourceURLs"), r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
			}
			continue
		}
		if len(r.APIGroups) == 0 {
			errs = append(errs, field.Required(p.Child("apiGroups"), "resource rules must supply at least one api group"))
		}
		if len(r.Resources) == 0 {
			errs = append(errs, field.Required(p.Child("resources"), "resource rules must supply at least one resource"))
		}
	}
	return errs
}
