// What the two kinds of role bindings have in common.

package kinds

import (
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// defaultSubjects completes the references of a role binding, given its subjects and
// the role it refers to.
func defaultSubjects(list []rbacv1.Subject, role *rbacv1.RoleRef) {
	set(&role.APIGroup, rbacv1.GroupName)
	for i := range list {
		switch list[i].Kind {
		case rbacv1.UserKind, rbacv1.GroupKind:
			set(&list[i].APIGroup, rbacv1.GroupName)
		}
	}
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

// bindingColumns are those of bindings.
func bindingColumns() columns {
	return columns{
		nameColumn(),
		text("Role", rbacv1.RoleBinding{}.SwaggerDoc()["roleRef"]),
		ageColumn(),
		wide(text("Users", "Users in the roleBinding")),
		wide(text("Groups", "Groups in the roleBinding")),
		wide(text("ServiceAccounts", "ServiceAccounts in the roleBinding")),
	}
}

// subjectCells lists users, groups and service accounts.
func subjectCells(subjects []rbacv1.Subject) (string, string, string) {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", ")
}
