package rbac

// Restoring the default roles and bindings.

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// Reconcile makes missing ClusterRoles, ClusterRoleBindings and Roles, and adds missing
// rules and subjects to existing ones. Additions of users stay. An object with the
// annotation rbac.authorization.kubernetes.io/autoupdate: "false" is not changed. After an
// error it continues with the others.
func Reconcile(ctx context.Context, client kubernetes.Interface) error {
	v1 := client.RbacV1()
	// Three lists are cheaper than a read of each object: usually nothing has changed.
	roles, err := v1.ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list cluster roles: %w", err)
	}
	bindings, err := v1.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list cluster role bindings: %w", err)
	}
	have, bound := make(map[string]*rbacv1.ClusterRole), make(map[string]*rbacv1.ClusterRoleBinding)
	for i := range roles.Items {
		have[roles.Items[i].Name] = &roles.Items[i]
	}
	for i := range bindings.Items {
		bound[bindings.Items[i].Name] = &bindings.Items[i]
	}
	var errs []error
	for _, r := range ClusterRoles() {
		if h := have[r.Name]; h != nil && (r.AggregationRule != nil || equality.Semantic.DeepEqual(h.Rules, r.Rules)) &&
			equality.Semantic.DeepEqual(h.AggregationRule, r.AggregationRule) {
			continue
		}
		o := reconciliation.ReconcileRoleOptions{
			Role: reconciliation.ClusterRoleRuleOwner{ClusterRole: &r}, Confirm: true,
			Client: reconciliation.ClusterRoleModifier{Client: v1.ClusterRoles()},
		}
		if _, err := o.Run(); err != nil {
			errs = append(errs, fmt.Errorf("cluster role %s: %w", r.Name, err))
		}
	}
	for _, b := range ClusterRoleBindings() {
		if h := bound[b.Name]; h != nil && h.RoleRef == b.RoleRef && equality.Semantic.DeepEqual(h.Subjects, b.Subjects) {
			continue
		}
		o := reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &b}, Confirm: true,
			Client: reconciliation.ClusterRoleBindingClientAdapter{Client: v1.ClusterRoleBindings()},
		}
		if _, err := o.Run(); err != nil {
			errs = append(errs, fmt.Errorf("cluster role binding %s: %w", b.Name, err))
		}
	}
	for _, r := range Roles() {
		o := reconciliation.ReconcileRoleOptions{
			Role: reconciliation.RoleRuleOwner{Role: &r}, Confirm: true,
			Client: reconciliation.RoleModifier{Client: v1, NamespaceClient: client.CoreV1().Namespaces()},
		}
		if _, err := o.Run(); err != nil {
			errs = append(errs, fmt.Errorf("role %s/%s: %w", r.Namespace, r.Name, err))
		}
	}
	return errors.Join(errs...)
}
