// The kind ClusterRoleBinding.

package kinds

import (
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func clusterRoleBindings() Kind {
	return of[rbacv1.ClusterRoleBinding, rbacv1.ClusterRoleBindingList](rbacv1.SchemeGroupVersion, "ClusterRoleBinding", "clusterrolebindings", "clusterrolebinding", Kind{
		cluster: true, upsert: true,
		name:     pathSegment,
		rules:    Rules{Create: create(validateClusterRoleBinding), Update: update(validateClusterRoleBindingUpdate)},
		defaults: defaulting(func(o *rbacv1.ClusterRoleBinding) { defaultSubjects(o.Subjects, &o.RoleRef) }),
		table:    clusterRoleBindingTable,
	})
}

// validateClusterRoleBinding checks a binding in the whole cluster.
func validateClusterRoleBinding(b *rbacv1.ClusterRoleBinding) field.ErrorList {
	errs := roleRef(&b.RoleRef, "ClusterRole")
	return append(errs, subjects(b.Subjects, false)...)
}

// validateClusterRoleBindingUpdate checks a change of a binding.
func validateClusterRoleBindingUpdate(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
	return append(validateClusterRoleBinding(b), roleRefUpdate(b.RoleRef, old.RoleRef)...)
}

func clusterRoleBindingTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, bindingColumns(), func(o *rbacv1.ClusterRoleBinding, now time.Time) []any {
		users, groups, accounts := subjectCells(o.Subjects)
		return []any{o.Name, o.RoleRef.Kind + "/" + o.RoleRef.Name, age(o.CreationTimestamp, now), users, groups, accounts}
	})
}
