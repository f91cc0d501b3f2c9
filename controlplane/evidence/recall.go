package evidence

// What the server that ran before this one has left about sessions: it is written on
// the nodes, by package tunnelhealth.

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Reasons of the condition TunnelConnected of a node that fell silent. ParkedPrefix
// comes before LinkSilent while its session waits for another connection.
const (
	LinkSilent   = "LinkSilent"
	ParkedPrefix = "Parked"
)

// Silenced returns a node's last word, if its condition TunnelConnected says that it
// fell silent. It is the condition's LastHeartbeatTime, in whole seconds.
func Silenced(n *corev1.Node) (last time.Time, ok bool) {
	_, last, ok = silenced(n)
	return last, ok
}

func silenced(n *corev1.Node) (noticed, last time.Time, ok bool) {
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		if c.Type != TunnelConnected || c.Status != corev1.ConditionFalse || strings.TrimPrefix(c.Reason, ParkedPrefix) != LinkSilent {
			continue
		}
		noticed, last = c.LastTransitionTime.Time, c.LastHeartbeatTime.Time
		if last.IsZero() || noticed.Before(last) {
			last = noticed
		}
		return noticed, last, !last.IsZero()
	}
	return time.Time{}, time.Time{}, false
}

// recall returns the session that a node had with the server before this one, if it
// fell silent then. When it had begun, and where from, is not known. A last word that is
// still to come, by a clock that was ahead, proves nothing.
func recall(n *corev1.Node, now time.Time) (Session, bool) {
	noticed, last, ok := silenced(n)
	if !ok || last.After(now) {
		return Session{}, false
	}
	end := Change{At: noticed, State: Detached, Cause: Silent, Heard: last}
	return Session{Node: n.Name, Change: end, Changes: []Change{{State: Attached}, end}, recalled: true}, true
}

// keptUntil returns the changes of the session that a node had with the server before
// this one when that ended, if it had one.
func keptUntil(n *corev1.Node, started time.Time) []Change {
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		if c.Type == TunnelConnected && c.Status == corev1.ConditionTrue && c.LastTransitionTime.Time.Before(started) {
			return []Change{{State: Attached, At: c.LastTransitionTime.Time}, {At: started, State: Detached, Cause: Drained}}
		}
	}
	return nil
}

// observeLocked returns what is known of a node's session. What a server before this
// one knew goes before what this one does.
func (j *Judge) observeLocked(n *corev1.Node, now time.Time) (s Session, ok bool) {
	if s, ok = j.cfg.Source.Observe(n.Name); !ok {
		if s, ok = recall(n, now); ok {
			j.recalled[n.UID] = s.Changes
		}
		return s, ok
	}
	j.recordLocked(&s, now)
	before := j.recalled[n.UID]
	if before == nil && s.State == Attached {
		// Whoever is back was there all the time. Of others the server before this
		// one may not have noticed that they were not.
		before = keptUntil(n, j.cfg.Started)
	}
	s.Changes = slices.Concat(before, s.Changes)
	return s, true
}

// dropRecalledLocked forgets what is recalled of nodes that are no more.
func (j *Judge) dropRecalledLocked(nodes []*corev1.Node) {
	there := make(map[types.UID]bool, len(nodes))
	for _, n := range nodes {
		there[n.UID] = true
	}
	maps.DeleteFunc(j.recalled, func(uid types.UID, _ []Change) bool { return !there[uid] })
}
