package nodelifecycle

// A queue of the nodes of one zone that wait for their NoExecute taint, and the
// rate at which it lets them go.

import (
	"math"
	"slices"
	"sync"
	"time"
)

// A limiter is a token bucket that holds one token. Such a bucket is full again
// one interval after it was emptied, so all there is to know is when that is.
type limiter struct {
	rate float32   // tokens per second; none if not above zero
	next time.Time // when the bucket is full
}

// take takes the token, if there is one.
func (l *limiter) take(now time.Time) bool {
	if !l.has(now) {
		return false
	}
	l.next = now.Add(l.interval())
	return true
}

func (l *limiter) has(now time.Time) bool { return l.rate > 0 && !now.Before(l.next) }

// interval is the time to fill the bucket. Dividing in single precision makes
// it ten seconds, not a little less, for a rate of 0.1.
func (l *limiter) interval() time.Duration {
	ns := float64(1/l.rate) * float64(time.Second)
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

// set changes the rate. A bucket with another rate is full if the old one was:
// neither does a change of rate let one through early, nor a stop and a start.
func (l *limiter) set(rate float32, now time.Time) {
	if rate == l.rate || (rate <= 0 && l.rate <= 0) {
		return
	}
	had := l.has(now)
	l.rate, l.next = rate, now
	if !had && rate > 0 {
		l.next = now.Add(l.interval())
	}
}

// A place is where in a zoneQueue a node is.
type place int

const (
	inLine  place = iota + 1
	through       // let through, or taken and not yet given back
)

// A zoneQueue holds each node of a zone at most once: waiting in line, or let
// through. A node that has been let through is let in again once it has been
// forgotten. Its methods may be called from any goroutine; they never block.
type zoneQueue struct {
	mu     sync.Mutex
	limit  limiter
	line   []waiting // in order of due; those due together in order of arrival
	places map[string]place
}

type waiting struct {
	node string
	due  time.Time
}

func newZoneQueue(rate float32) *zoneQueue {
	return &zoneQueue{limit: limiter{rate: rate}, places: map[string]place{}}
}

// add puts a node at the end of the line, unless it is in the queue.
func (q *zoneQueue) add(node string, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places[node] == 0 {
		q.insertLocked(waiting{node, now})
	}
}

// forget lets a node that has been let through come again. One that is in line
// keeps its place.
func (q *zoneQueue) forget(node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places[node] == through {
		delete(q.places, node)
	}
}

// remove takes a node out, wherever in the queue it is.
func (q *zoneQueue) remove(node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places[node] == inLine {
		q.line = slices.DeleteFunc(q.line, func(w waiting) bool { return w.node == node })
	}
	delete(q.places, node)
}

// take lets the first in line through. It spends a token to look, so that what
// cannot be done does not cost more than what can.
func (q *zoneQueue) take(now time.Time) (node string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.line) == 0 || !q.limit.take(now) || now.Before(q.line[0].due) {
		return "", false
	}
	node = q.line[0].node
	q.line = slices.Delete(q.line, 0, 1)
	q.places[node] = through
	return node, true
}

// retry puts a node that was let through back in line for a time, unless it has
// been removed or let in meanwhile.
func (q *zoneQueue) retry(node string, due time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places[node] == through {
		q.insertLocked(waiting{node, due})
	}
}

func (q *zoneQueue) insertLocked(w waiting) {
	i := len(q.line)
	for i > 0 && w.due.Before(q.line[i-1].due) {
		i--
	}
	q.line = slices.Insert(q.line, i, w)
	q.places[w.node] = inLine
}

// set changes the rate at which nodes are let through.
func (q *zoneQueue) set(rate float32, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit.set(rate, now)
}

// size is how many nodes wait in line.
func (q *zoneQueue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.line)
}
