package tunnelhealth

// Events about what happens to sessions.

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/controlplane/evidence"
)

// Reasons of events.
const (
	tunnelAttached = "TunnelAttached"
	tunnelParked   = "TunnelParked"
	tunnelResumed  = "TunnelResumed"
	tunnelDetached = "TunnelDetached"
)

// news is how long ago a change may be that is told.
const news = 10 * time.Minute

// tell makes events of the changes that there was none for.
func (c *Controller) tell(node *corev1.Node, s *evidence.Session, m *memo) {
	switch {
	case m.at != "" && m.at != s.Server: // each server counts its own, and has told of them
		m.told = s.Number - 1
	case s.Number < m.told:
		m.told = 0 // it was forgotten meanwhile, and counts anew
	}
	m.at = s.Server
	for i := range s.Changes {
		now := &s.Changes[i]
		if now.Number <= m.told {
			continue
		}
		m.told = now.Number
		if time.Since(now.At) > news {
			continue
		}
		var before *evidence.Change
		if i > 0 {
			before = &s.Changes[i-1]
		}
		if !c.events.Allow() {
			c.metrics.dropped.Inc()
			continue
		}
		typ, reason, message := event(node.Name, before, now)
		ref := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID}
		c.recorder.Event(ref, typ, reason, message)
	}
}

// event is the event of a change; before is nil if the change before is not known.
func event(node string, before, now *evidence.Change) (typ, reason, message string) {
	because := string(now.Cause)
	if now.Err != "" {
		because += ": " + now.Err
	}
	switch now.State {
	case evidence.Attached:
		if before != nil && before.State == evidence.Parked && before.Session == now.Session {
			return corev1.EventTypeNormal, tunnelResumed, fmt.Sprintf("Session %d of node %s goes on from %s after %v",
				now.Session, node, now.Addr, now.At.Sub(before.At).Round(time.Millisecond))
		}
		return corev1.EventTypeNormal, tunnelAttached, fmt.Sprintf("Agent of node %s is connected over %s from %s: session %d",
			node, now.Transport, now.Addr, now.Session)
	case evidence.Parked:
		return corev1.EventTypeWarning, tunnelParked, fmt.Sprintf("Session %d of node %s lost its connection and waits for another (%s)",
			now.Session, node, because)
	}
	typ = corev1.EventTypeWarning
	if now.Cause == evidence.Left {
		typ = corev1.EventTypeNormal
	}
	if now.Session == 0 {
		return typ, tunnelDetached, fmt.Sprintf("Agent of node %s at %s was turned away (%s)", node, now.Addr, because)
	}
	return typ, tunnelDetached, fmt.Sprintf("Session %d of node %s is over (%s)", now.Session, node, because)
}
