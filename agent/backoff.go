// Back-off: how long to wait before the next attempt.

package agent

import "time"

const (
	// settled is how long a session must last to count as a success, so that agents back
	// off from a server that crashes after the welcome.
	settled = 5 * time.Second
	// replacedFactor multiplies the maximum back-off of an agent that is replaced again and
	// again.
	replacedFactor = 10
)

// A backoff computes waits. It uses no clock and no random source of its own.
type backoff struct {
	servers         int
	lowest, highest time.Duration

	failures int // attempts and short sessions since the last settled one
	replaced int // times in a row that another agent was preferred
}

// failed returns how long to wait after a failed attempt: zero until each server has been
// tried once, then between zero and a bound (full jitter, so that agents that lost the same
// server reconnect at different times). The bound doubles once each server has been tried
// again. draw is from [0, 1).
func (b *backoff) failed(draw float64) time.Duration {
	b.failures++
	if b.failures <= b.servers {
		return 0
	}
	return time.Duration(draw * float64(doubled(b.lowest, (b.failures-b.servers-1)/b.servers, b.highest)))
}

// ended returns how long to wait after a session that lasted lived, until it ended or its
// server drained it.
func (b *backoff) ended(lived time.Duration, draw float64) time.Duration {
	b.replaced = 0
	if lived >= settled {
		b.failures = 0
	}
	return b.failed(draw)
}

// lost returns how long to wait after the server preferred another agent with the same
// identity. Two machines with one identity would otherwise replace each other as fast as
// they can dial. The wait is never short, and grows while the reason stays the same.
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
