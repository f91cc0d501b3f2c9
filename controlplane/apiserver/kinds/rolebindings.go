// The kind RoleBinding.

package kinds

import (
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func roleBindings() Kind {
	return of[rbacv1.RoleBinding, rbacv1.RoleBindingList](rbacv1.SchemeGroupVersion, "RoleBinding", "rolebindings", "rolebinding", Kind{
		upsert:   true,
		name:     pathSegment,
		rules:    Rules{Create: create(validateRoleBinding), Update: update(validateRoleBindingUpdate)},
		defaults: defaulting(func(o *rbacv1.RoleBinding) { defaultSubjects(o.Subjects, &o.RoleRef) }),
		table:    roleBindingTable,
	})
}

// validateRoleBinding checks a binding within a namespace, of either sort of
// role.
func validateRoleBinding(b *rbacv1.RoleBinding) field.ErrorList {
	errs := roleRef(&b.RoleRef, "Role", "ClusterRole")
	return append(errs, subjects(b.Subjects, true)...)
}

// validateRoleBindingUpdate checks a change of a binding. To bind another role
// is to make another binding.
func validateRoleBindingUpdate(b, old *rbacv1.RoleBinding) field.ErrorList {
	return append(validateRoleBinding(b), roleRefUpdate(b.RoleRef, old.RoleRef)...)
}

func roleBindingTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, bindingColumns(), func(o *rbacv1.RoleBinding, now time.Time) []any {
		users, groups, accounts := subjectCells(o.Subjects)
		return []any{o.Name, o.RoleRef.Kind + "/" + o.RoleRef.Name, age(o.CreationTimestamp, now), users, groups, accounts}
	})
}
