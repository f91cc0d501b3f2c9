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

// set changes the rate. A bucket with another rate is full if the old one was,
// so that neither a change of rate nor a stop and a start releases a node early.
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
	queued   place = iota + 1
	released       // by take, and not forgotten yet
)

// A zoneQueue holds each node of a zone at most once: queued or released. A
// released node can be added again once it has been forgotten. Its methods may be called from any goroutine; they never block.
type zoneQueue struct {
	mu      sync.Mutex
	limit   limiter
	entries []waiting // in order of due; those due together in order of arrival
	places  map[string]place
}

type waiting struct {
	node string
	due  time.Time
}

func newZoneQueue(rate float32) *zoneQueue {
	return &zoneQueue{limit: limiter{rate: rate}, places: map[string]place{}}
}

// add appends a node, unless it is in the queue.
func (q *zoneQueue) add(node string, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places[node] == 0 {
		q.insertLocked(waiting{node, now})
	}
}

// forget allows a released node to be added again. A queued one keeps its place.
func (q *zoneQueue) forget(node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places[node] == released {
		delete(q.places, node)
	}
}

// remove takes a node out, wherever in the queue it is.
func (q *zoneQueue) remove(node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places[node] == queued {
		q.entries = slices.DeleteFunc(q.entries, func(w waiting) bool { return w.node == node })
	}
	delete(q.places, node)
}

// take releases the first node that is due. It spends a token even if none is due, so
// that a retry costs as much as a success.
func (q *zoneQueue) take(now time.Time) (node string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.entries) == 0 || !q.limit.take(now) || now.Before(q.entries[0].due) {
		return "", false
	}
	node = q.entries[0].node
	q.entries = slices.Delete(q.entries, 0, 1)
	q.places[node] = released
	return node, true
}

// retry queues a released node again, due later, unless it has been removed or
// forgotten meanwhile.
func (q *zoneQueue) retry(node string, due time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.places[node] == released {
		q.insertLocked(waiting{node, due})
	}
}

func (q *zoneQueue) insertLocked(w waiting) {
	i := len(q.entries)
	for i > 0 && w.due.Before(q.entries[i-1].due) {
		i--
	}
	q.entries = slices.Insert(q.entries, i, w)
	q.places[w.node] = queued
}

// set changes the rate at which nodes are released.
func (q *zoneQueue) set(rate float32, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit.set(rate, now)
}

// size is how many nodes are queued.
func (q *zoneQueue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}
