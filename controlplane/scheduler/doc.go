// Package scheduler binds pods to nodes.
//
// It keeps a picture of the nodes and of what is asked of them (cache.go), a
// queue of pods without a node (queue.go), and for each pod makes one decision
// from the two: which nodes can take it (filter.go) and which of those has the
// most left (score.go). Deciding is pure and is done by one goroutine; a pod
// that has been decided about counts at once, before the API server has heard of
// it, so that a burst of pods does not land on one node. Telling the API server
// is done by several goroutines behind that.
//
// A pod that fits nowhere says so in an event and in its PodScheduled condition
// and waits. It is looked at again when something changes that could help (a
// node comes, grows, loses a taint; a pod goes), no sooner than its back-off
// allows, and from time to time anyway.
//
// What it looks at: spec.unschedulable, taints and tolerations, nodeSelector and
// required node affinity, host ports, requests against allocatable, the number
// of pods, affinity between pods and topology spread (podaffinity.go); what is preferred of
// these and PreferNoSchedule taints for choosing. Who demands or prefers something of the
// pods around costs a look at all pods, the others a look at those who do. Of the terms
// and constraints of a pod the first 100 count: one that has more is not placed, nor is one
// with more than 1,000 tolerations, node labels, host ports and resources, or 64 KiB of affinity.
// Pods of one ReplicaSet or StatefulSet that say nothing of spread are spread over nodes and
// zones, for choosing (siblings.go). What it is not: it knows nothing of volumes, and it
// spreads no pods for the Service that they have in common.
//
// A pod that fits nowhere may take the place of pods of lower priority. It waits for its
// turn (searches.go); a search finds the node where the least is lost (preempt.go), by
// trying the filters with pods taken away (trial.go, victims.go). The pod is nominated to
// that node, whose room then counts as taken for others of no higher priority (nominate.go),
// and the victims are deleted (evict.go). Searches are made by a goroutine of their own that
// rests after each, namespaces take turns, and a search has a bound.
package scheduler
