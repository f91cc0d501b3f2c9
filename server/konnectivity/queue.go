// A queue: what a client has sent to a target that has not taken it.

package konnectivity

import (
	"context"
	"sync"

	"google.golang.org/grpc/mem"
)

const (
	// maxQueued is how many bytes wait for a target. One packet may wait whatever it has.
	maxQueued = 1 << 20
	// partCost is what a part costs besides its bytes.
	partCost = 64
)

// A queue has one who puts and one who takes.
type queue struct {
	more chan struct{} // holds one when there may be something to take
	room chan struct{} // holds one when there may be room

	mu    sync.Mutex // guards the following
	parts mem.BufferSlice
	cost  int // of parts, and of what has been taken and not written
	ended bool
}

func newQueue() *queue {
	return &queue{more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put returns false, and has room hold one some time, if there is no room. Else it has
// taken p over. What comes after the end is dropped.
func (q *queue) put(p mem.BufferSlice) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	cost := p.Len() + partCost*len(p)
	switch {
	case q.ended:
		p.Free()
		return true
	case q.cost > 0 && q.cost+cost > maxQueued:
		return false
	}
	q.cost += cost
	q.parts = append(q.parts, p...)
	signal(q.more)
	return true
}

// take waits until there is something. It returns false at the end, and when ctx is done.
func (q *queue) take(ctx context.Context) (mem.BufferSlice, bool) {
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

// written frees what take has returned, and makes room for as much.
func (q *queue) written(p mem.BufferSlice) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cost -= p.Len() + partCost*len(p)
	p.Free()
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
