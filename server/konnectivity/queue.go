// A queue: what a client has sent to a target that has not taken it.

package konnectivity

import (
	"context"
	"sync"
)

const (
	// maxQueued is how many bytes wait for a target. One packet may wait whatever it has.
	maxQueued = 1 << 20
	// partCost is what a packet costs besides its bytes.
	partCost = 64
)

// A queue has one who puts and one who takes.
type queue struct {
	more chan struct{} // holds one when there may be something to take
	room chan struct{} // holds one when there may be room

	mu    sync.Mutex // guards the following
	parts [][]byte
	cost  int // of parts, and of what has been taken and not written
	ended bool
}

func newQueue() *queue {
	return &queue{more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put returns false, and has room hold one some time, if there is no room. What comes
// after the end is dropped.
func (q *queue) put(p []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return true
	}
	if q.cost > 0 && q.cost+len(p)+partCost > maxQueued {
		return false
	}
	q.cost += len(p) + partCost
	q.parts = append(q.parts, p)
	signal(q.more)
	return true
}

// take waits until there is something. It returns false at the end, and when ctx is done.
func (q *queue) take(ctx context.Context) ([][]byte, bool) {
	for ctx.Err() == nil {
		q.mu.Lock()
		parts, ended := q.parts, q.ended
		q.parts = nil
		q.mu.Unlock()
		if len(parts) > 0 {
			return parts, true
		}
		if ended {
			return nil, false
		}
		select {
		case <-q.more:
		case <-ctx.Done():
		}
	}
	return nil, false
}

// written makes room for as much as p had.
func (q *queue) written(p []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cost -= len(p) + partCost
	signal(q.room)
}

// end says that nothing more comes.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	signal(q.more)
	signal(q.room)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
