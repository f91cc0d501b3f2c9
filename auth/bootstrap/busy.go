// This file handles servers that answer with Retry-After.

package bootstrap

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// maxAsked bounds the time of a Retry-After.
	maxAsked = 5 * time.Minute
	// maxBusyAnswer bounds how much of such an answer is read.
	maxBusyAnswer = 4 << 10
)

// A busyError means that the server has answered 429 or 503 with Retry-After (RFC 9110
// section 10.2.3).
type busyError struct {
	host, status string
	after        time.Duration
}

// Error does not include the time, so that it is logged once.
func (e *busyError) Error() string {
	return fmt.Sprintf("%s is busy (%s) and asks to come back later", e.host, e.status)
}

// retryAfterIn is the Retry-After in err; zero if there is none.
func retryAfterIn(err error) time.Duration {
	if busy := (*busyError)(nil); errors.As(err, &busy) {
		return busy.after
	}
	return 0
}

// busyTransport turns answers with Retry-After into a *busyError. client-go would wait
// by itself, but only a few times, and without a log line.
type busyTransport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t busyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return resp, err
	}
	after, ok := retryAfter(resp.Header.Get("Retry-After"), time.Now())
	if !ok {
		return resp, nil
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxBusyAnswer) // so that the connection can be used again
	_ = resp.Body.Close()
	return nil, &busyError{host: r.URL.Host, status: resp.Status, after: after}
}

// retryAfter reads the value of a Retry-After header: seconds, or a date.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	after := time.Duration(0)
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		after = time.Duration(seconds) * time.Second //nolint:gosec // 31 bits
	} else if at, err := http.ParseTime(value); err == nil {
		after = at.Sub(now)
	} else {
		return 0, false
	}
	return min(max(after, 0), maxAsked), true
}

// A round is one try at all servers, some of which may have answered with Retry-After.
type round struct {
	busyUntil map[string]time.Time
}

// may reports whether a server may be tried now.
func (r *round) may(server string, now time.Time) bool { return !now.Before(r.busyUntil[server]) }

// note records the result of a server.
func (r *round) note(server string, err error, now time.Time) {
	if after := retryAfterIn(err); after > 0 {
		r.busyUntil[server] = now.Add(after)
	} else {
		delete(r.busyUntil, server)
	}
}

// pause is the wait before the next round: the random back-off, and then until a server
// may be tried. Clients that got the same Retry-After come back at different times.
func (r *round) pause(servers []string, backoff time.Duration, now time.Time) time.Duration {
	wait := backoff/2 + rand.N(backoff)
	first := time.Duration(-1)
	for _, s := range servers {
		if left := r.busyUntil[s].Sub(now); first < 0 || left < first {
			first = max(left, 0)
		}
	}
	if first > 0 {
		return first + wait/2
	}
	return wait
}
