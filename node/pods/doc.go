// Package pods runs the pods that are bound to a node.
//
// It watches the API for them, drives a runtime.Runtime until what runs is what
// the pods say, and writes back how they are. Each pod has a worker: one loop
// that owns all that is known of the pod, looks at it whenever something has
// changed or a time has come, decides, and starts tasks for whatever takes time
// (starting a container, stopping one, writing a status). Deciding is pure: decide
// in decide.go says what to do next, statusOf in status.go what to report; neither
// knows a clock, the runtime or the API.
//
// What is true of a pod is kept in three places, so that an agent that restarts
// takes up where it was, also without a server: the runtime keeps containers that
// have ended (those that Retention names), a checkpoint on disk keeps the pod as
// last seen with the status last computed, and the API has the status last written.
// Until the API has been listed once the checkpoints say what should run, and nothing
// is stopped merely because it is not known. What runs is taken over at once; what does not is started
// only after the API has had a little time to say that it has gone elsewhere.
//
// Beside the checkpoint is what the pod's containers were made from: the ConfigMaps,
// Secrets and tokens last read, so that a container that ends while the node is cut
// off, or a machine that reboots, can start it again. Only the agent's user may read
// these files, which is as much as can be said of the volumes that show the same.
//
// A pod whose name another one had, here, starts when nothing of the other runs any
// more. While a fence is up, because another agent with this node's identity runs
// the pods, none runs here.
//
// Static pods, which files of the machine define, are run in the same way. They wait for
// no server and go with their file alone; the API is told of them by mirror pods, which
// are written to like others and never run. What the API asks of a mirror is not done to
// the pod: one that is deleted is made anew.
//
// Words: a container is tried again and again, each run of it is an attempt, and
// an attempt that could not be started is an attempt too. A pod is killed when
// its containers are being stopped for good, settled when nothing is left to do.
//
// It does not know nodes: what a pod is admitted against, and the addresses it is
// reported with, come from Config. It evicts nothing.
package pods

import "embed"

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS
