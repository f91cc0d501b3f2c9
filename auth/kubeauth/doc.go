// Package kubeauth says who a caller of the API server is and what it may do.
//
// It has three parts that belong together. NewAuthenticator proves an identity
// from a client certificate, a bootstrap token or the token of a service account
// (package accounttoken). Authorizer decides by that
// identity, by the request's path and by what the cluster holds, and allows
// nothing that is not written down. NodeRestriction looks at what the
// authorizer cannot see, the bodies of a node's writes. An API server that uses
// the second without the third lets a node create objects in another's name.
//
// There are few identities and each has one short list:
//
//	system:masters                    everything
//	system:kube-controller-manager    what the controllers of package controlplane need
//	system:kube-scheduler             what the scheduler needs
//	system:bootstrappers              to ask for a node's first certificate
//	system:node:NAME in system:nodes  what a kubelet does to its own objects
//	system:serviceaccounts            to read how their tokens are checked
//	anybody                           health, version; once authenticated, discovery
//
// A node's certificate is believed while its key holds the node's name (package
// nodekeys), which is asked with each request. EndRequests ends the requests that had
// begun before the key lost it.
//
// A node may read and write its Node, its Lease, the pods bound to it, and the
// secrets and config maps those pods name. It may not touch what belongs to
// another node, in either direction; that is the property the tests of this
// package are about.
//
// What it is not: there are no roles here that a user could edit; package rbac has
// those. The authorizer answers "no opinion" for what it does not know, so that others
// can be asked behind it.
package kubeauth
