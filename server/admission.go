// Admission: how many sessions are greeted at a time, and when the rest should
// come back.

package server

import (
	"fmt"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	defaultMaxGreeting = 512
	defaultMaxSessions = 65536
	// maxGreetingOfNode is how many of those may be one node's: a session, and
	// those that nobody has noticed the loss of yet.
	maxGreetingOfNode = 8

	// soonest and latest are when an agent that is sent away is asked to come
	// back.
	soonest = time.Second
	latest  = 30 * time.Second
	// fullAgain is that time when there is no room for another session at all.
	fullAgain = time.Minute
)

// An admission decides who is greeted. It has no clock.
//
// Who is sent away is told when to come back, each a little later than the one
// before, at the pace at which greetings are got through: so a storm of agents
// comes back as a queue.
type admission struct {
	maxGreeting, maxSessions int

	mu       sync.Mutex // guards the following
	greeting int
	turned   int            // being told that there is no place
	ofNode   map[string]int // how many of greeting are each node's
	sessions int            // welcomed, and not over
	took     time.Duration  // what a greeting takes, on average
	next     time.Time      // when the last to be sent away was asked to come back
}

func newAdmission(maxGreeting, maxSessions int) *admission {
	if maxGreeting <= 0 {
		maxGreeting = defaultMaxGreeting
	}
	if maxSessions <= 0 {
		maxSessions = defaultMaxSessions
	}
	return &admission{maxGreeting: maxGreeting, maxSessions: maxSessions, ofNode: make(map[string]int), took: 10 * time.Millisecond}
}

// enter lets a session of node be greeted; the caller then calls greeted, and
// leave. An error wraps Busy and says when to come back.
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

// placeLocked finds a place in the queue of those who come back.
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

// greeted ends the greeting that enter has begun, which took so long. The session
// still counts for its node until leave.
func (a *admission) greeted(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.greeting--
	a.took += (took - a.took) / 16
}

// leave ends what enter has begun for the node: the session has its place, or is
// over.
func (a *admission) leave(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ofNode[node]--; a.ofNode[node] == 0 {
		delete(a.ofNode, node)
	}
}

// turn says whether there is room to tell a session that there is no place; done
// ends that.
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

// seat counts sessions that have been welcomed.
func (a *admission) seat(d int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions += d
}

// busy is how many sessions are being greeted or sent away.
func (a *admission) busy() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.greeting + a.turned
}

// A refusal is an error whose text is said as it is, and that says when to come back.
type refusal struct {
	code  tunnel.Code
	after time.Duration
	text  string
}

func (e *refusal) Error() string             { return e.text }
func (e *refusal) Unwrap() error             { return e.code }
func (e *refusal) RetryAfter() time.Duration { return e.after }

// turnedAway is what makes one line a minute: a node, as its certificate says, and a
// reason.
type turnedAway struct {
	node string
	code tunnel.Code
}
