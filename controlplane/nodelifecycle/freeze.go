package nodelifecycle

// Nodes that are quiet for a reason that is not their own.

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// unexplained labels a freeze whose reason was left empty.
const unexplained = "Excused"

// tellFreezeAgain is how often the event of a freeze that goes on is told again. An API server
// keeps events for an hour (kube-apiserver --event-ttl), and who explains a node reads this one.
const tellFreezeAgain = 30 * time.Minute

// The events of freezes that are told at once, and in a second: an event recorder has a queue of
// 1,000 and drops what comes when it is full. Ten thousand nodes take a minute and a half.
const (
	freezesAtOnce    = 500
	freezesPerSecond = 100
)

// excused tells whether a node's silence is explained by something else. Only
// Unknown is silence: a node that says it is not ready has been heard.
func (c *Controller) excused(node *corev1.Node) bool {
	if readiness(node) != corev1.ConditionUnknown {
		return false
	}
	_, _, _, yes := c.cfg.Excuse(node)
	return yes
}

// consider asks whether the node is excused and tells when that has changed. It is
// too late for an excuse once pods are being evicted.
func (r *run) consider(node *corev1.Node, rec *nodeRecord) bool {
	if evicts(node, corev1.TaintNodeUnreachable) || evicts(node, corev1.TaintNodeNotReady) {
		r.thaw(node, rec, "its pods are being evicted already")
		return false
	}
	reason, message, until, yes := r.cfg.Excuse(node)
	if !yes {
		r.thaw(node, rec, "it is quiet for no known reason but its own")
		return false
	}
	if reason == "" {
		reason = unexplained
	}
	now, fresh := time.Now(), rec.frozen != reason || !rec.until.Equal(until)
	if fresh {
		rec.told = time.Time{}
	}
	if now.Sub(rec.told) >= tellFreezeAgain && r.pace.TryAccept() { // or in a later pass
		rec.told = now
		tell(r.cfg.Freezes, node, corev1.EventTypeWarning, evictionFrozen, "No pod is evicted from node %s: %s: %s", node.Name, reason, message)
	}
	if fresh {
		r.count(rec, reason, message, until)
		r.log.Warn("evictions from the node are frozen", "node", node.Name, "reason", reason, "message", message)
	}
	return true
}

// thaw ends a freeze, if there is one. why is said to people.
func (r *run) thaw(node *corev1.Node, rec *nodeRecord, why string) {
	if rec.frozen == "" {
		return
	}
	tell(r.cfg.Freezes, node, corev1.EventTypeNormal, evictionResumed, "Node %s is treated as any other again (%s was the reason not to): %s", node.Name, rec.frozen, why)
	r.log.Info("evictions from the node are no longer frozen", "node", node.Name, "reason", rec.frozen, "because", why)
	r.count(rec, "", "", time.Time{})
}

// count moves a node from one reason's number to another's; empty is none.
func (r *run) count(rec *nodeRecord, reason, message string, until time.Time) {
	if rec.frozen != reason || !rec.until.Equal(until) {
		r.cfg.Frozen(rec.node.Name, reason, message, until)
	}
	rec.until = until
	if rec.frozen != "" {
		r.metrics.frozen.WithLabelValues(rec.frozen).Dec()
	}
	if rec.frozen = reason; reason != "" {
		r.metrics.frozen.WithLabelValues(reason).Inc()
	}
}
