// Package server is the control side of the tunnel: the hub to which agents
// connect, the port that they share with the API server, and, in package connect,
// a front end for others.
//
// The mental model: the Hub is a dialer. Its users only call DialContext, which has the
// signature of net.Dialer's. Below it are sessions, one for each connected node. The
// address alone decides which session a dial uses:
//
//	node-1:10250            the node of that name
//	10.0.0.7%node-1:8080    10.0.0.7 as node-1 sees it
//	10.0.0.7:8080           the node with that address, by SetRoutes
//
// A node's name is the one in its certificate; the name in an agent's hello must be equal.
// There is no fallback: a dial to an address of no connected node fails, and is never made
// from the server itself.
//
// If a node connects twice, the newest session is used and the older one is ended with the
// code Replaced. An agent that migrates, to another transport or address, lists in its
// hello the older sessions that it keeps (metadata "keeps": their sequence numbers, the
// latest first). Those get no more dials, and end when their last stream has. If the newest
// ends before them, the latest of them gets the dials again.
//
// A hello alone replaces no session, because its sender may have ended before it is read.
// A new session replaces another one when its agent has answered the welcome with a ping or
// a pong, and is ended if that takes more than 30 s. Until then the older one gets the
// dials, and the new one only if there is no other.
//
// An agent that is stopped first announces that it leaves. A dial into its node then waits,
// for Config.RestartPatience at most, until a session of the agent's next process starts,
// here or at another server, and uses that. Dials do not wait for a node whose agent
// vanished without the announcement (it is parked, or has no session), that was forgotten
// (Forget) or whose session was ended (End). At most 256 dials wait for one node, and 4,096
// in all; more fail at once. Dials of other servers (DialHere) do not wait.
//
// A session ends without loss if both ends have read what they were sent: the hub sends
// goodbye to an agent that announced that it leaves once no stream is open here, and the
// agent closes the session once no stream is open there.
//
// # Two agents with one identity
//
// If the disk of a machine is copied, or restored elsewhere, two agents have one
// certificate. Each process has an instance number of its own, which differs between such a
// clone and an agent that reconnects. The instance that connected last for the first time
// is the node, because an operator who starts an agent wants it to be the node. The hub
// ends the session of the earlier instance, which stops its pods, and refuses it when it
// connects again; both ends log the addresses of both agents.
//
// The hard question is when to accept the superseded instance again. Pods outlive
// connections and agents: if the current agent has no session, or was killed, its pods may
// still run. Accepting the other one then would run the pods on both machines. So a
// superseded agent is refused for 15 minutes (Config.TakeBack) after the session of the
// current one has ended, which is after its detach window. A longer partition can exceed
// any bound, but without a bound a node whose machine was destroyed would stay empty until
// an operator acts. After 15 minutes controllers have already replaced the pods of the
// silent node. In these cases the agent is accepted earlier:
//
//   - The current agent sent a goodbye, as when it is uninstalled: after one minute,
//     which is longer than a restart takes.
//   - The node was deleted (Forget): its pods are deleted with it.
//   - The refused agent was restarted: it has a new instance number, and an operator
//     chose it.
//
// The current agent, and the next process on its machine, may reconnect at any time. Once
// the superseded one is accepted again it is the current one, and the other is refused in
// turn.
//
// A hub keeps this in memory, for a bounded number of nodes. After its restart the agent
// that connects last is the current one.
//
// # Who is the node
//
// A valid certificate does not prove that its holder is still the node. Config.Admit is
// called when a session begins and when it is resumed. End ends the sessions of a node that
// may no longer connect, with the code tunnel.Revoked.
//
// What this package is not: it knows no transport (package cmd joins them), no
// Kubernetes, and no policy about who may dial what; front ends authorize their
// callers, agents their targets.
package server

import "embed"

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS
