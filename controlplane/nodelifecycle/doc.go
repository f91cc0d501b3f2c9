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
// stopped, and when every zone is down all of them are taken back, because then
// the fault is more likely here than there. Somebody who knows more than silence
// can be asked with Config.Excuse: an excused node loses its pods to nobody.
//
// The shape: one loop makes passes over all nodes (monitor.go), with what a pass
// decides in pure functions (health.go, zones.go, taints.go); a ticker takes nodes
// from the zones' queues (queue.go, noexecute.go); two work queues follow events
// (noschedule.go, pods.go). All state is rebuilt from the caches by each Run, so
// a restart or a change of leader forgets how long a node was quiet, and nothing
// else: taints that are there stay.
//
// What it is not: it deletes no pod. Taint eviction is a controller of its own.
package nodelifecycle
