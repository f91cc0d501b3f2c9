// The kind ClusterRole.

package kinds

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func clusterRoles() Kind {
	return of[rbacv1.ClusterRole, rbacv1.ClusterRoleList](rbacv1.SchemeGroupVersion, "ClusterRole", "clusterroles", "clusterrole", Kind{
		cluster: true, upsert: true,
		name:  pathSegment,
		rules: Rules{Create: create(validateClusterRole), Update: anew(validateClusterRole)},
	})
}

// validateClusterRole checks a role of the cluster.
func validateClusterRole(r *rbacv1.ClusterRole) field.ErrorList {
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
