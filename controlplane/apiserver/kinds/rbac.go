// Rules for roles and the bindings of them.

package kinds

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateRole checks a role of a namespace.
func ValidateRole(r *rbacv1.Role) field.ErrorList { return policyRules(r.Rules, true) }

// ValidateClusterRole checks a role of the cluster.
func ValidateClusterRole(r *rbacv1.ClusterRole) field.ErrorList {
	errs := policyRules(r.Rules, false)
	if a := r.AggregationRule; a != nil {
		p := field.NewPath("aggregationRule", "clusterRoleSelectors")
		if len(a.ClusterRoleSelectors) == 0 {
			errs = append(errs, field.Required(p, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
		}
		for i := range a.ClusterRoleSelectors {
			errs = append(errs, labelSelector(&a.ClusterRoleSelectors[i], p.Index(i))...)
		}
	}
	return errs
}

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

// ValidateRoleBinding checks a binding within a namespace, of either sort of
// role.
func ValidateRoleBinding(b *rbacv1.RoleBinding) field.ErrorList {
	errs := roleRef(&b.RoleRef, "Role", "ClusterRole")
	return append(errs, subjects(b.Subjects, true)...)
}

// ValidateRoleBindingUpdate checks a change of a binding. To bind another role
// is to make another binding.
func ValidateRoleBindingUpdate(b, old *rbacv1.RoleBinding) field.ErrorList {
	return append(ValidateRoleBinding(b), roleRefUpdate(b.RoleRef, old.RoleRef)...)
}

// ValidateClusterRoleBinding checks a binding in the whole cluster.
func ValidateClusterRoleBinding(b *rbacv1.ClusterRoleBinding) field.ErrorList {
	errs := roleRef(&b.RoleRef, "ClusterRole")
	return append(errs, subjects(b.Subjects, false)...)
}

// ValidateClusterRoleBindingUpdate checks a change of a binding.
func ValidateClusterRoleBindingUpdate(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
	return append(ValidateClusterRoleBinding(b), roleRefUpdate(b.RoleRef, old.RoleRef)...)
}

func roleRefUpdate(r, old rbacv1.RoleRef) field.ErrorList {
	if r == old {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), r, "cannot change roleRef")}
}

func roleRef(r *rbacv1.RoleRef, kinds ...string) field.ErrorList {
	p := field.NewPath("roleRef")
	var errs field.ErrorList
	if r.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(p.Child("apiGroup"), r.APIGroup, []string{rbacv1.GroupName}))
	}
	errs = append(errs, optionalOneOf(&r.Kind, p.Child("kind"), kinds...)...)
	if r.Name == "" {
		return append(errs, field.Required(p.Child("name"), ""))
	}
	return append(errs, messages(p.Child("name"), r.Name, content.IsPathSegmentName(r.Name))...)
}

// subjects checks who is bound. A service account has a namespace, which a
// binding in one can leave to be its own.
func subjects(list []rbacv1.Subject, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		s, p := &list[i], field.NewPath("subjects").Index(i)
		errs = append(errs, required(s.Name, p.Child("name"))...)
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			if s.Name != "" {
				errs = append(errs, dnsSubdomain(s.Name, p.Child("name"))...)
			}
			if s.APIGroup != "" {
				errs = append(errs, field.NotSupported(p.Child("apiGroup"), s.APIGroup, []string{""}))
			}
			if !namespaced {
				errs = append(errs, required(s.Namespace, p.Child("namespace"))...)
			}
		case rbacv1.UserKind, rbacv1.GroupKind:
			if s.APIGroup != rbacv1.GroupName {
				errs = append(errs, field.NotSupported(p.Child("apiGroup"), s.APIGroup, []string{rbacv1.GroupName}))
			}
		default:
			errs = append(errs, field.NotSupported(p.Child("kind"), s.Kind, []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
		}
	}
	return errs
}
