// Package nodekeys keeps which keys hold a node's name.
//
// A certificate alone does not make a machine the node: its key must hold the name. The
// first key that is approved for a free name takes it. Each renewal adds the new key. The
// name is held until the Node object is deleted, the node is revoked, or another machine
// takes the name after an administrator allowed it. A node that is disconnected keeps its
// name.
//
// There is one record for each held name: a ConfigMap with the node's name in the
// namespace Namespace. Administrators can read it; nodes can neither read nor write it. A
// Book changes these objects, each by one conditional write, so that of two machines that
// want a name at the same moment one gets it. A Keeper watches the objects and answers,
// from memory, whether a key holds a name now; it also ends requests and sessions of a key
// that has lost its name.
//
// Without a record no key is admitted. A cluster from before there were records gets one
// for each of its Nodes, once (Book.Prepare): the first key that is used for the name
// takes it. The namespace is annotated then, so that the deletion of a record later admits
// no key.
//
// What it is not: it handles no sessions, no HTTP and no validity of certificates. Callers
// verify the certificate first.
package nodekeys

import "embed"

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS
