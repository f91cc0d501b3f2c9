// Package server is the control side of the tunnel: the hub to which agents
// connect, the port that they share with the API server, and, in package connect,
// a front end for others.
//
// The mental model: the Hub is a dialer. Above it, everybody only calls
// DialContext with the shape that net.Dialer gave it; below it are sessions,
// one for each connected node. Which session a dial takes is decided by the
// address alone:
//
//	node-1:10250            the node of that name
//	10.0.0.7%node-1:8080    10.0.0.7 as node-1 sees it
//	10.0.0.7:8080           whichever node has that address, by SetRoutes
//
// A node's name is what its certificate says; what an agent claims is only
// compared with it. There is no fallback: an address that leads to no connected
// node is an error, never a dial from here.
//
// If a node connects twice, the newest session wins and the older is told so. An
// agent that only moves, to another transport or address, says in its hello which
// older sessions it still holds (metadata "keeps": their sequence numbers, the
// latest first): those get no more dials, and end when their last stream has. If
// the newest ends before them, the latest of them gets the dials again.
//
// A hello alone takes nothing from anybody: whoever said it may be gone by then. A
// session that would take another's place gets it when its agent has answered the
// welcome with a ping or a pong, and is ended if that takes 30 s. Until then the
// other one serves, and a dial goes to the new one only if there is no other.
//
// An agent that is stopped says first that it leaves. A dial into its node then waits, for
// Config.RestartPatience at most, until a session of the agent's next process begins, here or
// at another server, and goes there. It does not wait for a node whose agent vanished without
// a word: that one is parked, or has no session. Nor for one that is forgotten (Forget) or
// whose session was ended (End). At most 256 dials wait for one node, and 4,096 in all; more
// fail at once. A server that is asked by another (DialHere) does not wait.
//
// A session ends without loss if both ends have read what they were sent: an
// agent that says it is about to leave is told goodbye once nothing is open here,
// and hangs up in turn once nothing is open there.
//
// # Two agents with one identity
//
// A machine whose disk was copied, or restored elsewhere, has a double: two agents
// with one certificate. Each process calls itself by an instance number of its own,
// so that a double can be told from an agent that reconnects. An instance that the
// hub has not seen is the node from then on, because whoever starts an agent means
// it to be the node; the one before is told, stops its pods, and is turned away,
// whenever it connects, by a log line at either end with the addresses of both.
//
// The hard question is when to take it back. Pods outlive connections and agents:
// that the preferred agent has no session, even that it was killed, says nothing of
// its pods. To take the other one back then would have both machines run them. So
// an agent that was superseded is turned away for 15 minutes (Config.TakeBack)
// after the preferred one's session has ended, which is after its detach window.
// No bound is safe from a longer partition, and without any a node whose machine
// burned down would stay empty until somebody came. After that time those who
// rely on a pod's running once are late anyway: controllers have given the silent
// node up. There are quicker ways, each with a reason to believe that nothing runs
// twice, or at somebody's word:
//
//   - The preferred agent says goodbye, as when it is uninstalled: then it is a
//     minute, which covers that it was only restarted.
//   - The node is deleted (Forget): its pods are deleted with it.
//   - The agent that is turned away is restarted: it is new, and somebody's choice.
//
// The preferred agent itself comes back whenever it can, and so does the
// next process on its machine. Once the other one has been taken back it is the
// preferred one, and the one before is turned away in turn.
//
// All this is one hub's memory, of a bounded number of nodes, and lost when it
// restarts: then whoever comes last is new.
//
// # Who is the node
//
// That a certificate is good does not say whether its bearer is still the node:
// Config.Admit does, when a session begins and when it is resumed. When that changes End ends the sessions that there are; the agent is told
// why (tunnel.Revoked).
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
