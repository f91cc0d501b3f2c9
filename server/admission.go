// Admission: how many sessions may be in their handshake at a time, and when refused agents
// should retry.

package server

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	defaultMaxGreeting = 512
	defaultMaxSessions = 65536
	// maxGreetingOfNode is how many of those one node may have: a new session, and earlier
	// ones whose loss has not been noticed yet.
	maxGreetingOfNode = 8

	// soonest and latest bound the retry delay that a refused agent is given.
	soonest = time.Second
	latest  = 30 * time.Second
	// fullAgain is the retry delay when maxSessions is reached.
	fullAgain = time.Minute
)

// An admission decides which sessions may start. It has no clock.
//
// Each refused agent is given a retry delay a little longer than the one before, at the
// rate at which sessions are admitted. A storm of agents is so spread over time.
type admission struct {
	maxGreeting, maxSessions int

	mu       sync.Mutex // guards the following
	greeting int
	turned   int            // being refused
	ofNode   map[string]int // how many of greeting are each node's
	sessions int            // admitted and not ended
	took     time.Duration  // average duration of a handshake
	next     time.Time      // retry time of the agent refused last
}

func newAdmission(maxGreeting, maxSessions int) *admission {
	return &admission{
		maxGreeting: cmp.Or(max(maxGreeting, 0), defaultMaxGreeting), maxSessions: cmp.Or(max(maxSessions, 0), defaultMaxSessions),
		ofNode: make(map[string]int), took: 10 * time.Millisecond,
	}
}

// enter admits a session of node to its handshake; the caller must then call greeted and
// leave. An error wraps Busy and has the retry delay.
func (a *admission) enter(node string, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	busy := func(after time.Duration, format string, args ...any) error {
		return &refusal{tunnel.Busy, after, fmt.Sprintf(format, args...)}
	}
	switch {
	case a.sessions >= a.maxSessions:
		return busy(fullAgain, "%d agents are connected", a.sessions)
	case a.ofNode[node] >= maxGreetingOfNode:
		return busy(soonest, "%d sessions of this node are being greeted", a.ofNode[node])
	case a.greeting >= a.maxGreeting:
		return busy(a.placeLocked(now), "%d agents are being greeted", a.greeting)
	}
	a.greeting++
	a.ofNode[node]++
	return nil
}

// placeLocked returns the next retry delay.
func (a *admission) placeLocked(now time.Time) time.Duration {
	step := min(max(a.took/time.Duration(a.maxGreeting), 100*time.Microsecond), 50*time.Millisecond)
	a.next = a.next.Add(step)
	if first := now.Add(soonest); a.next.Before(first) {
		a.next = first
	}
	if last := now.Add(latest); a.next.After(last) {
		a.next = last
	}
	return a.next.Sub(now)
}

// greeted records that a handshake ended and how long it took. The session still counts for
// its node until leave.
func (a *admission) greeted(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.greeting--
	a.took += (took - a.took) / 16
}

// leave undoes enter for the node: the session is registered, or has ended.
func (a *admission) leave(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ofNode[node]--; a.ofNode[node] == 0 {
		delete(a.ofNode, node)
	}
}

// turn reports whether the refused session may receive the reason. The caller must call done
// afterwards.
func (a *admission) turn() (done func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.turned >= a.maxGreeting {
		return nil, false
	}
	a.turned++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.turned--
	}, true
}

// seat adds d to the number of admitted sessions.
func (a *admission) seat(d int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions += d
}

// busy is how many sessions are in their handshake or being refused.
func (a *admission) busy() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.greeting + a.turned
}

// A refusal is an error with the text that the agent is sent and its retry delay.
type refusal struct {
	code  tunnel.Code
	after time.Duration
	text  string
}

func (e *refusal) Error() string             { return e.text }
func (e *refusal) Unwrap() error             { return e.code }
func (e *refusal) RetryAfter() time.Duration { return e.after }

// turnedAway is the key of a rate-limited log: one line a minute for each node, by its
// certificate, and reason.
type turnedAway struct {
	node string
	code tunnel.Code
}
