// Package kubeauth authenticates the API server's callers and authorizes them.
//
// It has three parts that belong together. NewAuthenticator authenticates by a client
// certificate, a bootstrap token or the token of a service account (package
// accounttoken). Authorizer decides by the identity, by the request's path and by the
// objects of the cluster, and allows only what is listed. NodeRestriction checks what
// the authorizer cannot see, the bodies of a node's writes. An API server that uses the
// second without the third lets a node create objects in another's name.
//
// There are few identities, and each has one short list:
//
//	system:masters                    everything
//	system:kube-controller-manager    what the controllers of package controlplane need
//	system:kube-scheduler             what the scheduler needs
//	system:bootstrappers              to ask for a node's first certificate
//	system:node:NAME in system:nodes  what a kubelet does to its own objects
//	system:serviceaccounts            to read how their tokens are checked
//	anybody                           health, version; once authenticated, discovery
//
// A node's certificate is accepted while its key holds the node's name (package
// nodekeys), which is checked with each request. When the key loses the name,
// EndRequests ends the requests under way.
//
// A node may read and write its Node, its Lease and the pods bound to it. It may read the
// secrets and config maps those pods name, and the secrets their persistent volumes are
// mounted with. It may neither read nor write objects of another node; the tests of this
// package are about that property.
//
// What it is not: it has no roles that a user could edit; package rbac has those. The
// authorizer answers "no opinion" for unknown requests, so that another authorizer can
// follow it.
package kubeauth
