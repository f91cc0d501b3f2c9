// Package server is the control side of the tunnel: the hub to which agents
// moor, the port that they share with the API server, and, in package connect,
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
// latest first): those get no more dials, and end when their last stream has.
//
// A session ends without loss if both ends have read what they were sent: an
// agent that says it is about to leave is told goodbye once nothing is open here,
// and hangs up in turn once nothing is open there.
//
// An agent that comes back after another instance with its identity has taken
// over is a cloned machine and is turned away for as long as the other one is
// connected.
//
// What this package is not: it knows no transport (package cmd joins them), no
// Kubernetes, and no policy about who may dial what; front ends authorize their
// callers, agents their targets.
package server
