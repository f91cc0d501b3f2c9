// Package nodekeys keeps which keys hold a node's name.
//
// A certificate alone does not make a machine the node: it must be for a key that
// holds the name. The first key that is approved for a free name takes it, and keeps
// it through renewals, each of which adds the new key, until the Node object is
// deleted, the node is revoked, or an administrator allows another machine to take
// the name over. A name is not free because its node is silent.
//
// There is one object for each name that is held, for people to look at: a ConfigMap
// called after the node in the namespace of Namespace. It is the only truth. Nodes
// can neither read nor write it. A Book makes changes to these objects, each by one
// conditional write, so that of two who want a name at the same moment one gets it.
// A Keeper follows the objects and answers, from memory, whether a key holds a name
// now; it also ends what had begun under a key that does not hold its name any more.
//
// An object that is missing admits nobody. So a cluster made before there were such
// objects gets one for each of its Nodes, once (Book.Prepare): it is taken by the
// first key that is shown under the name. That this has been done is written down on
// the namespace, so that nobody gets in because an object was deleted later.
//
// What it is not: it knows no sessions, no HTTP and no certificates' validity. The
// callers have verified the certificate before they ask.
package nodekeys

import "embed"

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS
