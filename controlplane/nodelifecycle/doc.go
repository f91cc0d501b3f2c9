// Package nodelifecycle finds out which nodes have gone quiet and does what
// Kubernetes documents about it.
//
// A node is heard from when its Lease is renewed or its status carries another
// heartbeat. What counts is when this controller noticed, by its own clock; what
// a node's clock says is never compared with ours. A node that has not been heard
// from for the grace period gets Ready=Unknown, and its pods get Ready=False.
//
// Three kinds of taint follow from a node's conditions. NoSchedule taints are
// kept in step at once, whatever the reason. NoExecute taints, which evict pods,
// are handed out by zone and at a rate: a zone that is mostly down is slowed or
// stopped, and when every zone is down nobody gets one and those that there are
// are taken back, because then the fault is more likely here than there. Somebody
// who knows more than silence can be asked with Config.Excuse: an excused node gets
// no such taint. It loses none either, and a node that is judged so (Config.Judged)
// keeps its taint also when every zone is down: what is known says that it is dead.
//
// The shape: one loop makes passes over all nodes (monitor.go), with what a pass
// decides in pure functions (health.go, zones.go, taints.go); a ticker takes nodes
// from the zones' queues (queue.go, noexecute.go); two work queues follow events
// (noschedule.go, pods.go). All state is rebuilt by each Run from the caches and
// from one Lease (memory.go), in which nodes are that have been quiet for a while
// and are not yet Unknown.
//
// Time in which nobody could be heard is no silence: neither a restart or a change
// of leader, nor an outage of the API, nor a standstill of the process begins the
// silence of a node anew, and none adds to it. Taints that are there stay, with the
// time at which they were added.
//
// What it is not: it deletes no pod. Taint eviction is a controller of its own.
package nodelifecycle

import "embed"

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS
