// Package kubelet connects the API server to the nodes: it serves the
// subresources of pods, nodes and services whose answer lives on a node, namely
// pods/log, pods/exec, pods/attach, pods/portforward and the three proxies.
//
// Every connection is made by one func with the shape of net.Dialer's
// DialContext. The package never dials by itself, never resolves a name and
// never falls back to a direct connection, so where the bytes travel is the
// caller's business. Three kinds of address are handed to it:
//
//	NODE:PORT      the kubelet API of a node, or another port of the node itself
//	IP%NODE:PORT   an address that has a meaning on that node, such as a pod's
//	IP:PORT        an address that no node is known for (service endpoints only)
//
// A node is addressed by its name, never by an address it reports about itself.
// The TLS session with a kubelet runs end to end inside that connection: the
// kubelet's certificate is verified against the cluster CA for the node's name,
// and the kubelet verifies our client certificate. The proxies are different:
// what they reach is somebody's own server, so they show no credentials and, as
// Kubernetes documents, do not verify certificates.
//
// What it is not: it decides nothing about who may call it. Authentication and
// authorization happen before; only the extra check of a WebSocket upgrade,
// which arrives as a GET and acts like a create, is made here.
package kubelet
