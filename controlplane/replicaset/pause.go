package replicaset

// The pause before pods are made in the place of those that fail at once. The first
// to fail is replaced at once; if those made since fail too, the next wait.

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/children"
)

// A pause is how many times in a row pods of a ReplicaSet have failed. Those that
// fail together are one time.
type pause struct {
	children.Pause

	set        types.UID
	generation int64
	seen       map[types.UID]bool // those of its pods that have failed and been counted
	made       bool               // pods have been made since the last failure
}

// pauseOf returns how long it is until pods of rs may be made, given all its pods.
func (c *Controller) pauseOf(key string, rs *appsv1.ReplicaSet, pods []*corev1.Pod, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pauses[key]
	if p == nil || p.set != rs.UID || p.generation != rs.Generation { // somebody has seen to it
		p = &pause{set: rs.UID, generation: rs.Generation, made: true}
		c.pauses[key] = p
	}
	p.note(pods, now)
	return children.Pause{Failures: p.Failures - 1, Last: p.Last}.Left(c.cfg.MinBackoff, c.cfg.MaxBackoff, now)
}

// note takes pods as they are now. One that was made after the last failure and is
// ready ends the pause.
func (p *pause) note(pods []*corev1.Pod, now time.Time) {
	if p.Last.After(now) { // the clock has been set back
		p.Last = now
	}
	seen := make(map[types.UID]bool)
	for _, pod := range pods {
		switch {
		case pod.Status.Phase == corev1.PodFailed && pod.DeletionTimestamp == nil:
			seen[pod.UID] = true
			if p.seen[pod.UID] {
				continue
			}
			if p.made && (p.Failures == 0 || since(pod, p.Last)) {
				p.Failures++
				p.made = false
			}
			if at := children.EndedAt(pod, now); at.After(p.Last) && !at.After(now) {
				p.Last = at
			}
		case children.Active(pod) && children.Ready(pod) && since(pod, p.Last):
			p.Failures = 0
		}
	}
	p.seen = seen
}

// since tells whether a pod was made at t or later, as far as the API's whole seconds
// tell.
func since(pod *corev1.Pod, t time.Time) bool {
	return !pod.CreationTimestamp.Time.Before(t.Truncate(time.Second))
}

// madeFor notes that pods of the ReplicaSet at key have been made.
func (c *Controller) madeFor(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pauses[key]; p != nil {
		p.made = true
	}
}

// forget drops what is remembered of the ReplicaSet at key.
func (c *Controller) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pauses, key)
}
