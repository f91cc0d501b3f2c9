package children

// How long to wait before a pod is made in the place of one that failed.

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Defaults of the bounds of a Pause, which are those of Kubernetes' Jobs.
const (
	DefaultMinBackoff = 10 * time.Second
	DefaultMaxBackoff = 6 * time.Minute
)

// A Pause is how often pods of an owner have failed since one did well.
type Pause struct {
	Failures int
	Last     time.Time // of the failures
}

// Left is how much longer to wait: least after the first failure, and twice as long
// after each further one, up to most. A failure in the future was timed by a clock that has been set
// back since, and does not count.
func (p Pause) Left(least, most time.Duration, now time.Time) time.Duration {
	if p.Failures <= 0 || p.Last.Sub(now) > most {
		return 0
	}
	d := least
	for i := 1; i < p.Failures && d < most; i++ {
		d *= 2
	}
	return max(p.Last.Add(min(d, most)).Sub(now), 0)
}

// EndedAt is when p ended: when the last of its containers did or, if it does not
// say, when it was told to or was no longer ready; when it was made if that is not
// known either, and now if nothing is. A node writes most of these times: one after now
// does not count, and p did not end before it was made.
func EndedAt(p *corev1.Pod, now time.Time) time.Time {
	var at time.Time
	for i := range p.Status.ContainerStatuses {
		if end := p.Status.ContainerStatuses[i].State.Terminated; end != nil && end.FinishedAt.After(at) && !end.FinishedAt.After(now) {
			at = end.FinishedAt.Time
		}
	}
	c := readiness(p)
	switch {
	case !at.IsZero():
	case p.DeletionTimestamp != nil:
		at = p.DeletionTimestamp.Time
		if g := p.DeletionGracePeriodSeconds; g != nil {
			at = at.Add(-time.Duration(*g) * time.Second)
		}
	case c != nil && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.After(now):
		at = c.LastTransitionTime.Time
	}
	if made := p.CreationTimestamp.Time; at.Before(made) {
		at = made
	}
	if at.IsZero() {
		return now
	}
	return at
}

// Pauses are, by owner and place, how often pods that failed have been replaced: a place
// is a node or a name. They forget a place at which none has failed for twice the longest
// pause. Its methods may be called from any goroutine.
type Pauses struct {
	least, most time.Duration

	mu sync.Mutex
	of map[string]map[string]Pause // guarded by mu; by owner, by place
}

// NewPauses returns none yet. They will be of least to most.
func NewPauses(least, most time.Duration) *Pauses {
	return &Pauses{least: least, most: most, of: make(map[string]map[string]Pause)}
}

// Left is how much longer to wait before the owner's pod at place, which has failed, may
// be replaced.
func (p *Pauses) Left(owner, place string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[owner][place].Left(p.least, p.most, now)
}

// Replaced notes that the owner's pod at place, which had failed, was deleted to be replaced.
func (p *Pauses) Replaced(owner, place string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	places := p.of[owner]
	if places == nil {
		places = make(map[string]Pause)
		p.of[owner] = places
	}
	for name, had := range places {
		if now.Sub(had.Last) > 2*p.most {
			delete(places, name)
		}
	}
	places[place] = Pause{Failures: places[place].Failures + 1, Last: now}
}

// Forget drops what is known of an owner, which is gone or has been changed.
func (p *Pauses) Forget(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, owner)
}
