// Package kinds holds the kinds of objects that the API server stores: what each is called,
// what is checked, what is filled in, what kubectl shows, and which subresources there are.
//
// A kind is one file, named as the API names the resource: deployments.go has the
// Deployment's entry (a Kind) and next to it the rules, defaults, columns and hooks that the
// entry names. The kinds that are too large for one file have more, whose names begin with
// the resource's: pods_volumes.go, serviceaccounts_token.go. What several kinds have in
// common lies in files that name none. TestOneFileAKind holds the package to that.
//
// To add a kind, write such a file and add its function to the list of All. If its API group
// is a new one, the server has to be told of the group as well: groups and groupPriorities in
// package apiserver.
//
// The types of k8s.io/api serve as wire format, as memory format and as what is stored.
//
// How the parts work is said in rules.go, defaults.go and tables.go; what a request may
// write, in strategy.go. The addresses and node ports of services, which are given out from
// a state of the server's, are not here, nor are the plugins of admission, which look at many
// kinds, and the ways into a node.
package kinds
