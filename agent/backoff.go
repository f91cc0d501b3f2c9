// Pace: how long to wait between attempts, and which failures to mention.

package agent

import (
	"math/rand/v2"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// firstPause is the bound of the first pause that is one.
	firstPause = 500 * time.Millisecond
	// lived is how long a session must have been up for its loss to count as
	// the first failure.
	livedLong = 10 * time.Second
	// An agent whose identity another one uses waits longer, so that two clones
	// do not take the node away from each other all the time.
	firstReplacedPause = 30 * time.Second
	mostReplacedPause  = 5 * time.Minute

	// repeatAfter is how often a failure that stays the same is mentioned.
	repeatAfter = time.Minute
)

// A backoff decides how long to wait: not at all until each server has been
// tried again once, then a random time up to a bound that doubles (full jitter).
type backoff struct {
	servers  int
	most     time.Duration
	failures int
	replaced int
}

// next takes why the last attempt failed and how long its session lived.
func (b *backoff) next(why tunnel.Code, lived time.Duration) time.Duration {
	if why == tunnel.Replaced {
		b.replaced++
		bound := doubled(firstReplacedPause, b.replaced-1, mostReplacedPause)
		return bound/2 + rand.N(bound/2) //nolint:gosec // spreads load, guards nothing
	}
	b.replaced = 0
	if lived >= livedLong {
		b.failures = 0
	}
	b.failures++
	if b.failures <= b.servers {
		return 0
	}
	return rand.N(doubled(firstPause, b.failures-b.servers-1, b.most)) //nolint:gosec // as above
}

// doubled is d doubled n times, at most most.
func doubled(d time.Duration, n int, most time.Duration) time.Duration {
	for range n {
		if d >= most {
			break
		}
		d *= 2
	}
	return min(d, most)
}

// A chronicle keeps repetitions out of the log.
type chronicle struct {
	last   string
	at     time.Time
	silent int
}

// worth says whether a failure should be mentioned, and how many like it have
// not been.
func (c *chronicle) worth(now time.Time, server string, err error) (silent int, ok bool) {
	what := server + " " + root(err)
	if what == c.last && now.Sub(c.at) < repeatAfter {
		c.silent++
		return 0, false
	}
	silent = c.silent
	c.last, c.at, c.silent = what, now, 0
	return silent, true
}

// root is the innermost text of err: without addresses and ports that differ
// from one attempt to the next.
func root(err error) string {
	for err != nil {
		var inner error
		switch u := err.(type) { //nolint:errorlint // walks the chain itself
		case interface{ Unwrap() error }:
			inner = u.Unwrap()
		case interface{ Unwrap() []error }:
			if errs := u.Unwrap(); len(errs) > 0 {
				inner = errs[len(errs)-1]
			}
		}
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
	return ""
}
