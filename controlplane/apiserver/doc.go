// Package apiserver is a Kubernetes API server that runs inside this process.
//
// It is the generic server of k8s.io/apiserver (chain of filters, discovery,
// negotiation, patches, server-side apply, watches) over stores of the kinds that
// package kinds below this one knows. The types of k8s.io/api serve as wire format,
// as memory format and as what is stored: nothing is converted, except events,
// which two API groups share.
//
// What is said of a kind is said there, in one file each: what its resource is called, which
// of the usual manners it has (a status of its own, a generation, graceful deletion), its
// rules, its defaults, the columns that kubectl prints, its subresources. The ways into a
// node (logs, exec, proxies) come from package kubelet through Config.Connect.
//
// Requests share the server by Kubernetes' priority levels, so that heartbeats wait
// for nobody (fairness.go).
//
// The data lies in etcd, embedded or elsewhere; see package etcd. One server may
// use a store at a time: addresses and ports of services are handed out from
// memory.
//
// What nodes and pods use (metrics.k8s.io, package usage) is asked of the nodes and
// not stored.
//
// That server is the middle one of three that share the port, the filters and the store.
// Before it is Kubernetes' aggregator, which sends each group version on or to an extension
// server (aggregation.go, registration.go). Behind it is Kubernetes' server of custom
// resources (extensions.go).
//
// There are no controllers, but for those of these two and for the few objects that every
// cluster has (bootstrap.go).
package apiserver
