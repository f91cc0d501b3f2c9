// Package evidence judges why a node is silent.
//
// A node whose heartbeats stop may be dead, or it may be fine and out of reach.
// Silence alone does not tell, but the tunnel knows more: whose connection was
// closed, who said goodbye, who fell silent, and who else did at the same moment. A
// Judge makes an excuse of that where there is one:
//
//	ServerJustStarted  the server was started, or was stopped for a while, and
//	                   agents have not had time to come back
//	ServerLostNetwork  the server has no link up, or all sessions fell silent
//	                   together
//	SiteLostNetwork    all sessions of a site did, while others live
//	TunnelAttached     the node is in reach, and only its heartbeats are missing;
//	                   an excuse only if so configured
//	Autonomy           an annotation says that pods are kept for some time, whatever
//	                   the reason
//
// A site is the nodes with one value of the label node-restriction.kubernetes.io/site,
// which administrators set and nodes cannot. Nodes without it belong to no site,
// whatever zone they say they are in: one stolen node that chose its neighbours
// could freeze them, or keep them from being excused.
//
// The mental model is a set of spans. Each node was heard without a gap from one
// time to another; of a span that ended by silence the end is a last word. Sessions
// whose last words are close to each other were cut by one cause. If somebody of
// the group was heard all through that moment, or has been back for long enough
// for the others to have come back too, the cause was not the group's network. So a
// node that is silent alone, whose connection was closed or whose agent said goodbye
// is not excused. The judge looks at sessions itself, all the time: one whose silence
// was over before it noticed has nothing to say of it afterwards.
//
// A restart of the server ends no freeze. Who had fallen silent before it, and when, is
// written on the nodes (TunnelConnected is LinkSilent; its heartbeat is the last word),
// and is recalled for those that have no session since: a site that was cut stays cut,
// until the same time, and the same evidence ends that. That a node was heard meanwhile
// counts once it is back. Where a node was is not written, so that the server's own
// links excuse only nodes that it has heard itself.
//
// No excuse lasts for ever: that of a site as long as its autonomy, an hour unless
// an annotation says otherwise; that of all sessions as long, and a day if the
// server's own links are down; that of the server's starts twice the time that
// agents have to come back. None of them is counted from later than when the node
// was found Unknown, so that groups, neighbours and servers that come and go do not
// begin it anew. A node that never had a session, because its
// kubelet needs none, is treated as Kubernetes does, but for an annotation.
//
// What it is not: it does not find out that a node is silent, evicts nothing and
// writes nothing but one event. It knows no hub, only what its Source says.
package evidence
