// Occupancy: the number of streams of a session that one end has open.

package agent

import (
	"sync"

	"github.com/hawser-project/hawser/tunnel"
)

// An occupancy counts the streams that one end has open, and signals when the last one has
// ended.
type occupancy struct {
	limit int
	idle  chan struct{} // closed once closing and empty

	mu      sync.Mutex // guards the following
	n       int
	closing bool
}

// enter adds a stream, or returns why it is refused: Draining or Busy.
func (o *occupancy) enter(addr string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closing:
		return refuse(addr, tunnel.Draining, "the node's agent is stopping")
	case o.n >= o.limit:
		return refuse(addr, tunnel.Busy, "%d streams are open already", o.n)
	}
	o.n++
	return nil
}

func (o *occupancy) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n--
	if o.closing && o.n == 0 {
		close(o.idle)
	}
}

// close refuses new streams. The channel is closed once all streams have ended.
func (o *occupancy) close() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closing {
		o.closing = true
		if o.n == 0 {
			close(o.idle)
		}
	}
	return o.idle
}

// closed reports whether new streams are refused.
func (o *occupancy) closed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closing
}

func (o *occupancy) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n
}
