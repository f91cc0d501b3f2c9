package deployment

// The two strategies: pods replaced a few at a time, or all of the old ones stopped
// before any new one.

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/controlplane/children"
)

// freshSize is how many pods the fresh set may have now.
func (l *look) freshSize() int {
	have := size(l.fresh)
	if have >= l.want || !l.rolling() {
		return l.want
	}
	room := l.want + l.surge - sum(l.sets(), size)
	return have + min(max(room, 0), l.want-have)
}

// grow gives the fresh set the size that it may have and tells whether that is another.
func (l *look) grow() bool {
	n := l.freshSize()
	if n == size(l.fresh) {
		return false
	}
	l.resize(l.fresh, n)
	return true
}

// shrink takes pods from old sets, as many as can be missed, and tells whether there
// were any. Pods of the fresh set that do not serve yet count as missing already.
// Pods of old sets that do not serve go first: nobody misses them, and they would
// stand in the way of the rollout for ever.
func (l *look) shrink() bool {
	least := l.want - l.unavailable
	surplus := sum(l.sets(), size) - least - (size(l.fresh) - available(l.fresh))
	if sum(l.old, size) == 0 || surplus <= 0 {
		return false
	}
	idle := l.take(surplus, func(rs *appsv1.ReplicaSet) int { return size(rs) - available(rs) })
	serving := l.take(sum(l.sets(), available)-least, size)
	return idle || serving
}

// take makes old sets smaller by n in all, each by no more than f of it, the oldest
// first. It tells whether one has been made smaller.
func (l *look) take(n int, f func(*appsv1.ReplicaSet) int) (taken bool) {
	for _, rs := range l.old {
		if k := min(n, f(rs)); k > 0 {
			l.resize(rs, size(rs)-k)
			n -= k
			taken = true
		}
	}
	return taken
}

// recreate stops all old pods, then waits until none of them runs, then starts the new
// ones. It tells whether it found nothing to do.
func (c *Controller) recreate(ctx context.Context, o children.Owner, l *look) (idle bool, err error) {
	if l.take(sum(l.old, size), size) {
		return false, nil
	}
	running, err := c.running(l)
	switch {
	case err != nil || running:
		return false, err
	case l.fresh == nil:
		return false, c.create(ctx, o, l)
	}
	return !l.grow(), nil
}

// running tells whether pods of old sets may still run.
func (c *Controller) running(l *look) (bool, error) {
	for _, rs := range l.old {
		pods, err := c.podsOf(rs.Namespace, rs.UID)
		if err != nil {
			return false, err
		}
		if rs.Status.Replicas > 0 || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !children.Ended(p) }) {
			return true, nil
		}
	}
	return false, nil
}
