// Outbox: what is to be written to the connection, and who may add to it.

package mux

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// outLimit is how full an outbox may be for a stream to add another frame,
	// outCap what it holds without growing.
	outLimit = 48 << 10
	outCap   = outLimit + MaxFrame + 512
	// controlLimit is how much may be in it that the peer has brought about:
	// answers, resets and window updates.
	controlLimit = 1 << 20

	// little is how much a stream may have to say that takes precedence over
	// bulk, and favours how often that may happen while bulk waits.
	little  = 4 << 10
	favours = 8

	// partingTime is how long a session that ends tries to write what is left.
	partingTime = 250 * time.Millisecond
	// lastWords is how long a connection that takes nothing more is listened to.
	lastWords = time.Second
)

// outCaps recycles outboxes' memory: an idle session needs none. It is a cache
// and holds nothing that anybody could observe.
var outCaps = sync.Pool{New: func() any { return new([outCap]byte) }}

// An outbox is guarded by its session's mutex.
type outbox struct {
	buf     []byte
	direct  trier        // what the outbox can be left out for; nil if nothing
	busy    bool         // the writer has something in hand
	queues  [2][]*waiter // those who wait for room: with little to say, and with bulk
	turn    *waiter      // whose turn it is, until it has used that or given it up
	favours int          // how often the first queue was preferred in a row
	fault   error        // why the session must end
	kick    chan struct{}
}

// A trier takes what it has room for, without waiting: a link does, which gathers
// what is written itself.
type trier interface {
	TryWrite(head, body []byte) int
	// Ahead is how much may be on its way there before the path is kept busy for
	// too long.
	Ahead() int
}

// A waiter waits in an outbox's queue.
type waiter struct {
	wake   chan struct{} // holds at most one
	bulk   bool          // which queue it belongs to
	queued bool
	in     int // the queue that it is in, if it is queued
}

// put adds a frame, whether there is room or not: straight to the connection if
// nothing is before it and that takes it at once.
func (o *outbox) put(head, body []byte) {
	if o.direct != nil && !o.busy && len(o.buf) == 0 {
		n := o.direct.TryWrite(head, body)
		if n == len(head)+len(body) {
			return
		}
		skip := min(n, len(head))
		head, body = head[skip:], body[n-skip:]
	}
	if o.buf == nil {
		o.buf = outCaps.Get().(*[outCap]byte)[:0]
	}
	o.buf = append(append(o.buf, head...), body...)
	if len(o.buf) > outCap+controlLimit && o.fault == nil {
		o.fault = Violation("it asks for more answers than it reads")
	}
	signal(o.kick)
}

// take empties the outbox into the writer's hand.
func (o *outbox) take() []byte {
	buf := o.buf
	o.buf, o.busy = nil, len(buf) > 0
	o.pass()
	return buf
}

// recycle is for what take returned.
func recycle(buf []byte) {
	if cap(buf) == outCap {
		outCaps.Put((*[outCap]byte)(buf[:outCap]))
	}
}

func (o *outbox) room() bool { return len(o.buf) < o.limit() }

// limit is how full the outbox may be for another frame to be added: less on a slow
// path, where whatever has little to say would wait for what is in it.
func (o *outbox) limit() int {
	if o.direct == nil {
		return outLimit
	}
	return min(outLimit, max(o.direct.Ahead(), little))
}

// frame is how much of a stream's data a frame may hold.
func (o *outbox) frame() int { return min(MaxFrame, o.limit()) }

// queueOf is the number of the queue for w.
func queueOf(w *waiter) int {
	if w.bulk {
		return 1
	}
	return 0
}

// enter says whether w may add a frame. If not it is queued, and woken when it
// should ask again.
func (o *outbox) enter(w *waiter) bool {
	if o.room() && (o.turn == w || len(o.queues[0])+len(o.queues[1]) == 0) {
		return true
	}
	if o.turn == w {
		o.turn = nil
	}
	if !w.queued {
		w.queued, w.in = true, queueOf(w)
		o.queues[w.in] = append(o.queues[w.in], w)
	}
	return false
}

// done ends w's turn.
func (o *outbox) done(w *waiter) {
	if o.turn == w {
		o.turn = nil
	}
	o.pass()
}

// leave ends w's turn and its waiting.
func (o *outbox) leave(w *waiter) {
	if w.queued {
		w.queued = false
		q := o.queues[w.in]
		i := slices.Index(q, w)
		o.queues[w.in] = slices.Delete(q, i, i+1)
	}
	o.done(w)
}

// pass makes it somebody's turn, if there is room.
func (o *outbox) pass() {
	if o.turn != nil || !o.room() {
		return
	}
	q := 0
	switch {
	case len(o.queues[0]) == 0 && len(o.queues[1]) == 0:
		return
	case len(o.queues[0]) == 0:
		q, o.favours = 1, 0
	case len(o.queues[1]) > 0 && o.favours == favours:
		q, o.favours = 1, 0
	case len(o.queues[1]) > 0:
		o.favours++
	}
	w := o.queues[q][0]
	o.queues[q] = slices.Delete(o.queues[q], 0, 1)
	w.queued, o.turn = false, w
	signal(w.wake)
}

// write empties the outbox into the connection until the session is dead, and
// then closes it.
func (s *Session) write() {
	for {
		s.mu.Lock()
		buf, dead, fault := s.out.take(), s.dead, s.out.fault
		s.mu.Unlock()
		switch {
		case fault != nil && !dead:
			s.end(fmt.Errorf("%w: %w", tunnel.Lost, fault))
		case len(buf) == 0 && dead:
			_ = s.conn.Close() // nothing could be done about it
			return
		case len(buf) == 0:
			<-s.kick // end kicks too
			continue
		}
		_, err := s.conn.Write(buf)
		recycle(buf)
		if err != nil {
			s.hangUp(err)
			return
		}
	}
}

// hangUp closes a connection to which nothing can be written any more. A peer
// that hangs up may have said why, and those words lie behind what has been read
// so far: with TLS 1.3 that is how a client learns that the server does not
// accept its certificate.
func (s *Session) hangUp(err error) {
	s.mu.Lock()
	s.broken = err
	s.mu.Unlock()
	_ = s.conn.SetReadDeadline(time.Now().Add(lastWords)) // if it fails, so does the reader
	<-s.gone
	s.Abort() // or TLS would try to say goodbye, for five seconds
}
