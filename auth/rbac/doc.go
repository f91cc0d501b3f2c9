// Package rbac decides by Roles and their bindings what a user of the API may do
// (Kubernetes' Role Based Access Control, rbac.authorization.k8s.io/v1).
//
// It has four parts. An Authorizer answers whether a request is allowed by what is
// bound to its user, and lists what is. Escalation is the admission plugin without
// which whoever may write Roles could give themselves everything. Policy is what
// every cluster has from the beginning, and Reconcile keeps it so. An Aggregator fills
// in ClusterRoles that are made of others.
//
// Rules only ever allow. What none allows has "no opinion" here, and is refused by an
// API server that asks nobody further.
package rbac
