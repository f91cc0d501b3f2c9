package nodelifecycle

// NoExecute taints: which a node's readiness calls for, and the loop that hands
// them out at the rates of the zones.

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	nodetopology "k8s.io/component-helpers/node/topology"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// verdict returns the key of the NoExecute taint that a Ready condition calls
// for; empty: none.
func verdict(ready corev1.ConditionStatus) string {
	switch ready {
	case corev1.ConditionFalse, corev1.ConditionUnknown:
		return byCondition[corev1.NodeReady][ready]
	default:
		return ""
	}
}

// queues are the nodes that wait for a NoExecute taint, by zone.
type queues struct {
	mu     sync.Mutex
	byZone map[string]*zoneQueue
}

// of returns the queue of a zone; a new one begins at rate.
func (q *queues) of(zone string, rate float32) *zoneQueue {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byZone[zone] == nil {
		q.byZone[zone] = newZoneQueue(rate)
	}
	return q.byZone[zone]
}

// remove takes a node out of a zone's queue, if there is one.
func (q *queues) remove(zone, node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if z := q.byZone[zone]; z != nil {
		z.remove(node)
	}
}

// drop forgets the queues of zones that are not in keep and returns their names.
func (q *queues) drop(keep map[string]tally) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var gone []string
	for zone := range q.byZone {
		if _, there := keep[zone]; !there {
			delete(q.byZone, zone)
			gone = append(gone, zone)
		}
	}
	return gone
}

// all returns the queues in the order of their zones' names.
func (q *queues) all() []*zoneQueue {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []*zoneQueue
	for _, zone := range slices.Sorted(maps.Keys(q.byZone)) {
		out = append(out, q.byZone[zone])
	}
	return out
}

// evict hands out NoExecute taints until ctx is done. It looks at the queues
// between passes rather than while one fills them: the periods of passes are
// multiples of a tick.
func (r *run) evict(ctx context.Context) error {
	if !pause(ctx, tick/2) {
		return nil
	}
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		if !r.reach.down.Load() {
			r.taintDue(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// taintDue taints the nodes whose turn it is in their zones.
func (r *run) taintDue(ctx context.Context) {
	for _, q := range r.queues.all() {
		for ctx.Err() == nil {
			node, ok := q.take(time.Now())
			if !ok {
				break
			}
			done := false
			err := loop.Protect(func() error {
				done = r.taint(ctx, node)
				return nil
			})
			loop.Broken(r.log, "taint of node "+node, err)
			if !done {
				q.retry(node, time.Now().Add(recheck))
			}
		}
	}
}

// taint gives a node the NoExecute taint that it has come to deserve. It returns
// false if that should be tried again.
func (r *run) taint(ctx context.Context, name string) bool {
	node, err := r.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return true
	}
	if err != nil {
		return false
	}
	if readiness(node) == "" {
		return true // it is queued again once it has one and deserves it
	}
	var key string
	changed, err := r.editTaints(ctx, node, func(n *corev1.Node, now metav1.Time) ([]corev1.Taint, bool) {
		// The node may have changed its mind, or been excused, since it was queued.
		if key = verdict(readiness(n)); key == "" || r.excused(n) {
			return nil, false
		}
		return replace(n, corev1.TaintEffectNoExecute, evicting, []string{key}, now)
	})
	if err != nil {
		if err = r.reach.note(ctx, err); ctx.Err() == nil && !r.reach.down.Load() {
			r.log.Warn("will try to taint the node again", "node", name, "error", err)
		}
		return false
	}
	if changed {
		r.metrics.evictions.WithLabelValues(nodetopology.GetZoneKey(node)).Inc()
		r.log.Info("pods are evicted from a node that is not ready", "node", name, "taint", key)
	}
	return true
}
