// A queue: data from the client that was not written to the target yet.

package konnectivity

import (
	"context"
	"sync"

	"google.golang.org/grpc/mem"
)

const (
	// maxQueued bounds the bytes in a queue. An empty queue takes one packet of any size.
	maxQueued = 1 << 20
	// partCost is the memory of a part besides its bytes.
	partCost = 64
)

// A queue has one writer, put, and one reader, take.
type queue struct {
	more chan struct{} // holds one if there may be data
	room chan struct{} // holds one if there may be room

	mu    sync.Mutex // guards the following
	parts mem.BufferSlice
	cost  int // of parts, and of data taken and not written
	ended bool
}

func newQueue() *queue {
	return &queue{more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put takes p over. It returns false if there is no room; the channel room gets a value
// once there may be some. After the end p is dropped.
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

// take waits for data. It returns false at the end, and when ctx is done.
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

// written frees p, which take has returned, and makes room for as many bytes.
func (q *queue) written(p mem.BufferSlice) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cost -= p.Len() + partCost*len(p)
	p.Free()
	signal(q.room)
}

// end marks the end of the data.
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
