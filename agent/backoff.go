// Back-off: how long to wait before the next attempt.

package agent

import "time"

const (
	// settled is how long a session must have lived to count as a success: a
	// server that welcomes and falls over is to be backed off from as well.
	settled = 5 * time.Second
	// replacedFactor is how far beyond the highest back-off an agent goes that
	// keeps being replaced.
	replacedFactor = 10
)

// A backoff chooses waits. It has no clock and no dice.
type backoff struct {
	servers         int
	lowest, highest time.Duration

	failures int // attempts and short sessions since the last settled one
	replaced int // times in a row that another agent was preferred
}

// failed says how long to wait after an attempt that failed: not at all until
// each server has been tried once, and then anything between nothing and a
// bound that doubles (full jitter: agents that lost the same server do not come
// back together). draw is from [0, 1).
func (b *backoff) failed(draw float64) time.Duration {
	b.failures++
	if b.failures <= b.servers {
		return 0
	}
	return time.Duration(draw * float64(doubled(b.lowest, b.failures-b.servers-1, b.highest)))
}

// ended says how long to wait after a session that lived for some time.
func (b *backoff) ended(lived time.Duration, draw float64) time.Duration {
	b.replaced = 0
	if lived >= settled {
		b.failures = 0
	}
	return b.failed(draw)
}

// lost says how long to wait after the server preferred another agent of the
// same identity. Two machines with one identity would otherwise take turns as
// fast as they can dial, so there is no attempt at once, the wait is never
// short, and it grows for as long as nothing else happens.
func (b *backoff) lost(draw float64) time.Duration {
	b.replaced++
	bound := doubled(b.highest, b.replaced-1, replacedFactor*b.highest)
	return bound/2 + time.Duration(draw*float64(bound/2))
}

// doubled is d doubled n times, and at most limit.
func doubled(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}
