// Package rbac decides by Roles and their bindings what a user of the API may do
// (Kubernetes' Role Based Access Control, rbac.authorization.k8s.io/v1).
//
// It has four parts. An Authorizer decides whether the roles that are bound to a user allow
// a request, and lists their rules. Escalation is the admission plugin that prevents that
// a user who may write Roles gives itself more rights. Policy has the roles of every
// cluster, and Reconcile restores them. An Aggregator fills in ClusterRoles that are made
// of others.
//
// Rules only allow. A request that no rule allows gets "no opinion", and an API server
// without further authorizers refuses it.
package rbac
