package nodelifecycle

// Events about nodes, in Kubernetes' words where it has some.

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// Reasons of events.
const (
	registeredNode  = "RegisteredNode"
	removingNode    = "RemovingNode"
	nodeNotReady    = "NodeNotReady"
	evictionFrozen  = "EvictionFrozen"
	evictionResumed = "EvictionResumed"
)

// tell records an event about a node. Its message is formatted.
func tell(events record.EventRecorder, node *corev1.Node, typ, reason, format string, args ...any) {
	ref := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID}
	events.Eventf(ref, typ, reason, format, args...)
}

func (c *Controller) tellAdded(n *corev1.Node) {
	tell(c.events, n, corev1.EventTypeNormal, registeredNode, "Node %s event: Registered Node %s in Controller", n.Name, n.Name)
}

func (c *Controller) tellRemoved(n *corev1.Node) {
	tell(c.events, n, corev1.EventTypeNormal, removingNode, "Node %s event: Removing Node %s from Controller", n.Name, n.Name)
}

func (c *Controller) tellStatus(n *corev1.Node, status string) {
	tell(c.events, n, corev1.EventTypeNormal, status, "Node %s status is now: %s", n.Name, status)
}
