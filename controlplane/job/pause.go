package job

// The pause after failures.

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/children"
)

// A pause is how often pods of a Job have failed since one succeeded.
type pause struct {
	job      types.UID
	failures int
	last     time.Time // of the failures
}

// left is how much longer to wait before the next pod is made.
func (p *pause) left(least, most time.Duration, now time.Time) time.Duration {
	if p.failures == 0 {
		return 0
	}
	d := least
	for i := 1; i < p.failures && d < most; i++ {
		d *= 2
	}
	return max(p.last.Add(min(d, most)).Sub(now), 0)
}

// after returns the pause after pods have ended.
func (p *pause) after(l *look, pods []*corev1.Pod) *pause {
	out := *p
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return l.ended(a).Compare(l.ended(b)) })
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded {
			out.failures = 0
			continue
		}
		out.failures++
		if at := l.ended(pod); at.After(out.last) {
			out.last = at
		}
	}
	return &out
}

// ended is when p ended: when the last of its containers did or, if it does not
// say, when it was told to.
func (l *look) ended(p *corev1.Pod) time.Time {
	var at time.Time
	for i := range p.Status.ContainerStatuses {
		if end := p.Status.ContainerStatuses[i].State.Terminated; end != nil && end.FinishedAt.After(at) {
			at = end.FinishedAt.Time
		}
	}
	switch {
	case !at.IsZero():
		return at
	case p.DeletionTimestamp != nil:
		at = p.DeletionTimestamp.Time
		if g := p.DeletionGracePeriodSeconds; g != nil {
			at = at.Add(-time.Duration(*g) * time.Second)
		}
		return at
	}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	return l.now
}

// pauseOf returns the pause with the pods that have ended and are not counted
// yet. Who does not remember, because it was just started, goes by the pods that
// are still there.
func (c *Controller) pauseOf(l *look) *pause {
	c.mu.Lock()
	p := c.pauses[key(l)]
	c.mu.Unlock()
	if p == nil || p.job != l.job.UID {
		p = (&pause{job: l.job.UID}).after(l, children.Filter(l.pods, func(p *corev1.Pod) bool {
			return children.Ended(p) && !l.tracked(p) && p.DeletionTimestamp == nil
		}))
		c.store(l, p)
	}
	u := uncounted(l.job)
	return p.after(l, children.Filter(l.pods, func(p *corev1.Pod) bool {
		return l.outcome(p) != "" && !slices.Contains(u.Succeeded, p.UID) && !slices.Contains(u.Failed, p.UID)
	}))
}

// remember adds pods that have just been noted to the pause.
func (c *Controller) remember(l *look, noted []*corev1.Pod) {
	c.mu.Lock()
	p := c.pauses[key(l)]
	c.mu.Unlock()
	if p != nil && p.job == l.job.UID {
		c.store(l, p.after(l, noted))
	}
}

func (c *Controller) store(l *look, p *pause) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pauses[key(l)] = p
}

// forget drops what is remembered of the Job at key.
func (c *Controller) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pauses, key)
	delete(c.written, key)
}

func key(l *look) string { return l.job.Namespace + "/" + l.job.Name }
