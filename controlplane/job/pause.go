package job

// The pause after failures.

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/children"
)

// A pause is how often pods of a Job have failed since one succeeded.
type pause struct {
	children.Pause

	job types.UID
}

// after returns the pause after pods have ended.
func (p *pause) after(l *look, pods []*corev1.Pod) *pause {
	out := *p
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return children.EndedAt(a, l.now).Compare(children.EndedAt(b, l.now)) })
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded {
			out.Failures = 0
			continue
		}
		out.Failures++
		if at := children.EndedAt(pod, l.now); at.After(out.Last) {
			out.Last = at
		}
	}
	return &out
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
