// What both programs know of the ways to a node.

package setup

import "github.com/hawser-project/hawser/auth"

const (
	// SSH is the transport without a tunnel: the server goes through the node's
	// sshd.
	SSH = "ssh"
	// TransportAnnotation is on the Node objects of nodes that keep no tunnel, and
	// says how they are reached: SSH.
	TransportAnnotation = auth.TransportAnnotation
)
