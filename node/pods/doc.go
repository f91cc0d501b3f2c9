// Package pods runs the pods that are bound to a node.
//
// It watches the API for them, calls a runtime.Runtime until the containers match the
// pods, and writes their status. Each pod has a worker: one loop that owns the state
// of the pod, runs after each change or at a set time, decides, and starts tasks for
// slow operations (starting a container, stopping one, writing a status). Deciding is
// pure: decide in decide.go returns the next actions, statusOf in status.go the status;
// neither uses a clock, the runtime or the API.
//
// The state of a pod is kept in three places, so that an agent that restarts continues,
// also without a server: the runtime keeps ended containers (those of Retention), a
// checkpoint on disk keeps the pod as last seen with the last computed status, and the
// API has the last written status. Until the API has been listed once, the pods of the
// checkpoints run, and no pod is stopped because it is unknown. Running containers are
// adopted at once. Others are started only after a wait (Config.Patience), in which the
// API may show that the pod was moved to another node.
//
// A second file keeps what the pod's containers are made from: the ConfigMaps, Secrets
// and tokens last read. With them containers can be restarted while the node is
// disconnected, and after a reboot. Only the agent's user may read these files, as with
// the volumes of the same content.
//
// A pod with the name of an older pod on this node starts when nothing of the older one
// runs any more. While a fence is up, because another agent with this node's identity
// runs the pods, no pod runs here.
//
// Static pods, which files of the machine define, run in the same way. They need no
// server, and only the removal of their file removes them. Each has a mirror pod in the
// API, which gets its status and never runs. Changes of a mirror do not change the pod:
// a deleted mirror is made again.
//
// Words: each run of a container is an attempt, also one that could not be started. A
// pod is killed when its containers are being stopped and not restarted, and settled
// when nothing is left to do.
//
// It does not read the Node object: the node for admission and its addresses come from
// Config. It evicts pods that exceed their own limits of local storage, and no others.
package pods

import "embed"

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS
