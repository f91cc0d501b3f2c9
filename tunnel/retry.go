// Retry-after: when to come back, said in a refusal's text, since a note has no
// other room for it.

package tunnel

import (
	"errors"
	"strings"
	"time"
)

const (
	retryPrefix = "retry after "
	// maxRetryAfter bounds what a peer can ask for.
	maxRetryAfter = time.Hour
)

// RetryText is why with the time after which another attempt is welcome in
// front, which RetryAfter finds there at the other end. The time is rounded up to
// milliseconds.
func RetryText(after time.Duration, why string) string {
	after = (min(max(after, 0), maxRetryAfter) + time.Millisecond - 1).Truncate(time.Millisecond)
	return retryPrefix + after.String() + ": " + why
}

// RetryAfter is how long the peer asks to wait before the next attempt, if err
// wraps a Goodbye or a DialError that says so. It is an hour at most.
func RetryAfter(err error) (time.Duration, bool) {
	var (
		bye  *Goodbye
		dial *DialError
		text string
	)
	switch {
	case errors.As(err, &bye):
		text = bye.Text
	case errors.As(err, &dial):
		text = dial.Text
	default:
		return 0, false
	}
	text, ok := strings.CutPrefix(text, retryPrefix)
	if !ok {
		return 0, false
	}
	text, _, ok = strings.Cut(text, ": ")
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, false
	}
	return min(d, maxRetryAfter), true
}
