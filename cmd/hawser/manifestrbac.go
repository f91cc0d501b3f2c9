// hawser manifest rbac: the hub's roles in somebody else's cluster, and the agents'.

package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/controlplane"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/servers"
)

const (
	// hubSystem is the namespace of the hub's own pod, and hubAccount its service account
	// and the name of its roles.
	hubSystem, hubAccount = "hawser-system", "hawser-hub"
	// hubReaders is the role by which agents find the hub's authority and follow those of the
	// cluster.
	hubReaders = "hawser-tunnel-readers"
	// statusViewer is the role of those who may see the status page. An administrator binds it.
	statusViewer = "system:status-viewer"
)

func newManifestRBAC() *cobra.Command {
	namespace, balances, chosen := hubSystem, false, []string(nil)
	cmd := &cobra.Command{
		Use: "rbac", Short: "The service account of a hub and what it may do, and no more",
		Long: "Prints the service account of a hub and its roles. With --controllers it also binds the roles that\n" +
			"Kubernetes has for these controllers, system:controller:… and system:kube-scheduler, to the account.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkNamespace(namespace); err != nil {
				return err
			}
			if err := controlplane.CheckEnabled(chosen); err != nil {
				return fmt.Errorf("--%w", err)
			}
			runs := func(name string) bool { return len(chosen) > 0 && (name == "" || controlplane.Selected(chosen, name)) }
			granted := slices.DeleteFunc(permits(), func(p permit) bool {
				return p.option == forBalancers && !balances || p.option == forControllers && !runs(p.controller)
			})
			objects := rbacObjects(namespace, granted)
			for _, name := range slices.DeleteFunc(controlplane.Names(), func(name string) bool { return !runs(name) }) {
				objects = append(objects, boundRole(namespace, controlplane.RoleOf(name), objects)...)
			}
			return printObjects(cmd.OutOrStdout(), objects...)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", namespace, "namespace of the hub's service account")
	cmd.Flags().BoolVar(&balances, forBalancers, false, "for a hub with --load-balancer-addresses: also what it needs to listen for Services")
	cmd.Flags().StringSliceVar(&chosen, forControllers, nil, "for a hub with --controllers of this value: also what these need, and the Lease by which hubs elect a leader")
	return cmd
}

// boundRole binds Kubernetes' role of a controller to a hub, unless that is among those that
// there are.
func boundRole(namespace string, role controlplane.Role, there []runtime.Object) []runtime.Object {
	meta := metav1.ObjectMeta{Namespace: role.Namespace, Name: hubAccount + ":" + role.Name}
	if role.Name == "" || slices.ContainsFunc(there, func(o runtime.Object) bool {
		had, ok := o.(metav1.Object)
		return ok && had.GetName() == meta.Name
	}) {
		return nil
	}
	account := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: hubAccount}}
	if role.Namespace != "" {
		return []runtime.Object{&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: account, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name}}}
	}
	return []runtime.Object{&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: account, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}}}
}

// rbacObjects are a service account with these permits, and what it finds there: its
// namespaces, and the ConfigMap that agents read, of which it may not make any.
func rbacObjects(namespace string, all []permit) []runtime.Object {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	account := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: hubAccount}}
	objects := []runtime.Object{
		&corev1.Namespace{ObjectMeta: meta("", namespace)},
		&corev1.Namespace{ObjectMeta: meta("", nodekeys.Namespace)},
		&corev1.Namespace{ObjectMeta: meta("", servers.Namespace)},
		&corev1.ServiceAccount{ObjectMeta: meta(namespace, hubAccount)},
		&corev1.ConfigMap{ObjectMeta: meta(hubNamespace, hubName)},
	}
	rules := map[string][]rbacv1.PolicyRule{}
	for _, p := range all {
		rules[p.namespace] = append(rules[p.namespace], rbacv1.PolicyRule{
			APIGroups: []string{p.group}, Resources: []string{p.resource}, ResourceNames: p.names, Verbs: p.verbs,
		})
	}
	for _, ns := range slices.Sorted(maps.Keys(rules)) {
		if ns == "" {
			objects = append(objects,
				&rbacv1.ClusterRole{ObjectMeta: meta("", hubAccount), Rules: rules[ns]},
				&rbacv1.ClusterRoleBinding{ObjectMeta: meta("", hubAccount), Subjects: account, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: hubAccount}})
			continue
		}
		objects = append(objects,
			&rbacv1.Role{ObjectMeta: meta(ns, hubAccount), Rules: rules[ns]},
			&rbacv1.RoleBinding{ObjectMeta: meta(ns, hubAccount), Subjects: account, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: hubAccount}})
	}
	objects = append(objects, &rbacv1.ClusterRole{ObjectMeta: meta("", statusViewer), Rules: []rbacv1.PolicyRule{{NonResourceURLs: apiserver.StatusPaths(), Verbs: []string{"get"}}}})
	for _, read := range []struct {
		namespace string
		names     []string
	}{{hubNamespace, []string{hubName}}, {metav1.NamespaceSystem, []string{"kube-root-ca.crt", clientsName}}} {
		objects = append(objects,
			&rbacv1.Role{ObjectMeta: meta(read.namespace, hubReaders), Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: read.names, Verbs: []string{"get"},
			}}},
			&rbacv1.RoleBinding{
				ObjectMeta: meta(read.namespace, hubReaders), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: hubReaders},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.NodesGroup}},
			})
	}
	return objects
}
