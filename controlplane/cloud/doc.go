// Package cloud is the cloud provider "hawser" for the controllers of
// k8s.io/cloud-provider: a fleet behind NAT has no cloud but its hub.
//
// Machines are what the inventory says, which is the file of --cloud-config or a ConfigMap,
// and is followed; without one every node is a machine. A node whose identity was revoked (see
// package nodekeys) is a machine that is gone, whatever the inventory says. Load balancers
// are addresses of the servers: the provider gives a Service an address and ports of the
// pool, and the servers listen there (see package loadbalancer). Routes are the servers'
// own table, which the podCIDRs of Nodes make; the provider tells of ranges that make none.
//
// What it is not: it makes no machines and no Nodes, and keeps no routes.
package cloud

import "embed"

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS
