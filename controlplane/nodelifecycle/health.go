package nodelifecycle

// What is known of one node, and what it means for its conditions. Nothing here
// calls anybody.

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	nodeutil "k8s.io/component-helpers/node/util"
)

// Reasons and messages of conditions that this controller sets.
const (
	neverUpdated        = "NodeStatusNeverUpdated"
	neverUpdatedMessage = "Kubelet never posted node status."
	stoppedPosting      = "NodeStatusUnknown"
	stoppedMessage      = "Kubelet stopped posting node status."
)

// silent are the conditions that are Unknown for a node that is not heard from.
// NetworkUnavailable is not the node's own to report.
var silent = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

// A nodeRecord is what is known of a node. It belongs to the monitor; only unready
// is read by others.
type nodeRecord struct {
	node *corev1.Node // as the cache last had it
	zone string

	met       bool
	heard     time.Time // when it was last noticed that the node lives
	posted    bool      // the node had a Ready condition
	heartbeat metav1.Time
	leased    bool // the node had a Lease
	renewed   metav1.MicroTime
	confirmed metav1.MicroTime // renewal that was seen when the server was asked, if later than the cache's

	unready atomic.Bool // the node has a Ready condition that is not True
	settled bool        // a pass has dealt with the node
	frozen  string      // why evictions are frozen; empty: they are not
	until   time.Time   // when that ends, as far as it was told
	told    time.Time   // when the event of the freeze was last told
}

// hear takes the node and its Lease (nil: none) as they are now and moves heard
// if there is news. A status is news if its heartbeat differs, a Lease if its
// renewTime is later than the one seen before; one that goes back is no heartbeat,
// and what follows is compared with it, so that a node whose clock is set back is
// heard with its next renewal. What came says when the news did; a node that is met
// for the first time has only just been noticed.
func (r *nodeRecord) hear(node *corev1.Node, lease *coordinationv1.Lease, came *arrivals, now time.Time) {
	ready := readyCondition(node)
	beat, renewed := came.of(node.Name)
	switch {
	case !r.met && ready == nil:
		r.heard = node.CreationTimestamp.Time
	case !r.met, r.posted != (ready != nil):
		r.heard = now
	case ready != nil && !ready.LastHeartbeatTime.Equal(&r.heartbeat):
		r.heard = since(beat.said.Equal(&ready.LastHeartbeatTime), beat.came, r.heard, now)
	}
	r.met, r.posted = true, ready != nil
	if ready != nil {
		r.heartbeat = ready.LastHeartbeatTime
	}
	if lease != nil {
		t := renewal(lease)
		if !r.leased || t.After(r.renewed.Time) {
			r.heard = since(r.leased && renewed.said.Equal(&t), renewed.came, r.heard, now)
		}
		r.renewed, r.leased = t, true
	}
	if r.heard.After(now) {
		r.heard = now
	}
}

// confirm takes the Lease as the server, not the cache, has it and tells whether
// it is news.
func (r *nodeRecord) confirm(lease *coordinationv1.Lease, now time.Time) bool {
	t := renewal(lease)
	if (r.leased && !t.After(r.renewed.Time)) || t.Equal(&r.confirmed) {
		return false
	}
	r.heard, r.confirmed = now, t
	return true
}

// recall goes on with what is known of a node that this run has met just now: since
// when it is Unknown, or how long it had been silent when the last run ended. The
// time between does not count.
func (r *nodeRecord) recall(node *corev1.Node, was spell, now time.Time) {
	ready := readyCondition(node)
	switch {
	case unknown(ready, now):
		if t := ready.LastTransitionTime.Time; t.Before(r.heard) {
			r.heard = t
		}
	case was.Word != "" && was.Word == r.word(node):
		if t := now.Add(-was.silent()); t.Before(r.heard) {
			r.heard = t
		}
	}
}

// word identifies the last word of a node: as long as it is the same nothing has come.
func (r *nodeRecord) word(node *corev1.Node) string {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, node.UID, r.posted, r.heartbeat.UnixNano(), r.leased, r.renewed.UnixNano())
	return strconv.FormatUint(h.Sum64(), 36)
}

// lost tells whether the node has been quiet for too long. A node that has never
// said whether it is ready has the startup grace period.
func (r *nodeRecord) lost(now time.Time, p Policy) bool {
	grace := p.MonitorGracePeriod
	if !r.posted {
		grace = p.StartupGracePeriod
	}
	return !now.Before(r.heard.Add(grace))
}

// stoodStill tells whether a pass comes so late that this process cannot have
// been running. Nobody has listened then, and the API server, which may be part
// of the process, has not either.
func (p Policy) stoodStill(late time.Duration) bool { return late > p.MonitorGracePeriod/2 }

func renewal(lease *coordinationv1.Lease) metav1.MicroTime {
	if lease.Spec.RenewTime == nil {
		return metav1.MicroTime{}
	}
	return *lease.Spec.RenewTime
}

// silence returns the conditions of a node that is not heard from, and whether
// they say anything new about its readiness. The node is not changed.
func silence(node *corev1.Node, now metav1.Time) (conditions []corev1.NodeCondition, changed bool) {
	if unknown(readyCondition(node), now.Time) {
		return node.Status.Conditions, false
	}
	conditions = slices.Clone(node.Status.Conditions)
	for _, typ := range silent {
		i := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == typ })
		if i < 0 {
			conditions = append(conditions, corev1.NodeCondition{
				Type: typ, Status: corev1.ConditionUnknown, Reason: neverUpdated, Message: neverUpdatedMessage,
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: now,
			})
			continue
		}
		if c := &conditions[i]; !unknown(c, now.Time) {
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, stoppedPosting, stoppedMessage
			c.LastTransitionTime = now
		}
	}
	return conditions, true
}

// unknown tells whether c has been Unknown for some time. A node writes its conditions
// too: a time that is still to come, or none, is no time since which it is Unknown.
func unknown(c *corev1.NodeCondition, now time.Time) bool {
	return c != nil && c.Status == corev1.ConditionUnknown && !c.LastTransitionTime.IsZero() && !c.LastTransitionTime.After(now)
}

// readyCondition returns the node's Ready condition, or nil.
func readyCondition(node *corev1.Node) *corev1.NodeCondition {
	_, c := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
	return c
}

// readiness is the status of the node's Ready condition; empty: it has none.
func readiness(node *corev1.Node) corev1.ConditionStatus {
	if c := readyCondition(node); c != nil {
		return c.Status
	}
	return ""
}
