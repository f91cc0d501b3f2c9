// Outbox: what is to be written to the connection, and who may add to it.

package overh2

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// outLimit is how full an outbox may be for a stream to add another frame,
	// outCap what it holds without growing.
	outLimit = 48 << 10
	outCap   = outLimit + frameSize + 512
	// controlLimit is how much may be in it that the peer has brought about:
	// answers to settings and pings, resets and window updates.
	controlLimit = 1 << 20

	// partingTime is how long a session that ends tries to write what is left.
	partingTime = 250 * time.Millisecond
	// lastWords is how long a connection that takes nothing more is listened to.
	lastWords = time.Second
)

var (
	errProtocol  = errors.New("peer breaks the protocol")
	errExhausted = errors.New("out of stream numbers")
)

// outCaps recycles outboxes' memory: an idle session needs none. It is a cache
// and holds nothing that anybody could observe.
var outCaps = sync.Pool{New: func() any { return new([outCap]byte) }}

// An outbox is guarded by its session's mutex.
type outbox struct {
	buf    []byte
	window int       // what the peer lets the session send
	queue  []*waiter // those who wait for room or window
	fault  error     // why the session must end
	kick   chan struct{}

	hpack *hpack.Encoder // into block
	block bytes.Buffer
}

// A waiter waits in an outbox's queue. While it is granted it is its turn.
type waiter struct {
	wake            chan struct{} // holds at most one
	queued, granted bool
}

func (o *outbox) init(kick chan struct{}) {
	o.kick = kick
	o.window = 1<<16 - 1 // RFC 9113, 6.9.2
	o.hpack = hpack.NewEncoder(&o.block)
}

// Write is for the framer. It never fails.
func (o *outbox) Write(p []byte) (int, error) {
	if o.buf == nil {
		o.buf = outCaps.Get().(*[outCap]byte)[:0]
	}
	o.buf = append(o.buf, p...)
	if len(o.buf) > outCap+controlLimit && o.fault == nil {
		o.fault = fmt.Errorf("%w: it asks for more answers than it reads", errProtocol)
	}
	signal(o.kick)
	return len(p), nil
}

// take empties the outbox.
func (o *outbox) take() []byte {
	buf := o.buf
	o.buf = nil
	o.pass()
	return buf
}

// recycle is for what take returned.
func recycle(buf []byte) {
	if cap(buf) == outCap {
		outCaps.Put((*[outCap]byte)(buf[:outCap]))
	}
}

func (o *outbox) room() bool { return len(o.buf) < outLimit && o.window > 0 }

// enter says whether w may add a frame. If not it is queued, and woken when it
// should ask again.
func (o *outbox) enter(w *waiter) bool {
	if o.room() && (w.granted || len(o.queue) == 0) {
		return true
	}
	w.granted = false
	if !w.queued {
		w.queued = true
		o.queue = append(o.queue, w)
	}
	return false
}

// done ends w's turn.
func (o *outbox) done(w *waiter) {
	w.granted = false
	o.pass()
}

// leave ends w's turn and its waiting.
func (o *outbox) leave(w *waiter) {
	if w.queued {
		w.queued = false
		i := slices.Index(o.queue, w)
		o.queue = slices.Delete(o.queue, i, i+1)
	}
	o.done(w)
}

// pass makes it the turn of the first in the queue, if there is something to
// have.
func (o *outbox) pass() {
	if len(o.queue) == 0 || !o.room() {
		return
	}
	w := o.queue[0]
	o.queue = slices.Delete(o.queue, 0, 1)
	w.queued, w.granted = false, true
	signal(w.wake)
}

// write empties the outbox into the connection until the session is dead, and
// then closes it.
func (s *session) write() {
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
func (s *session) hangUp(err error) {
	s.mu.Lock()
	s.broken = err
	s.mu.Unlock()
	_ = s.conn.SetReadDeadline(time.Now().Add(lastWords)) // if it fails, so does the reader
	<-s.gone
	s.Abort() // or TLS would try to say goodbye, for five seconds
}
