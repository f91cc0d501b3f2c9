// Receiving: whoever reads, reads from the transport.

package link

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// readAhead is how much is read at a time where frames are short. Long bodies go
// straight to whoever reads. Every link has such a buffer for as long as it has a
// transport, so it is small.
const readAhead = 1 << 10

// inbound is what a link knows of its peer's bytes; the link's mu guards it.
type inbound struct {
	spill    ring   // what was read for nobody in particular
	received uint64 // offset of the next byte to come
	consumed uint64 // offset of the next byte to hand out
	acked    uint64 // the latest that we told the peer
	ackEvery uint64 // bytes after which an acknowledgement is due
	deadline deadline
	reading  bool // somebody reads from the transport, and nobody else may
	pumping  bool // the pump is at work
	waiting  int  // in Read

	ackTimer, watchTimer *time.Timer // nil until first needed
	ackSet, watchSet     bool
}

func (in *inbound) takeSpill(p []byte) int {
	if in.consumed == in.received {
		return 0
	}
	c := in.spill.at(in.consumed)
	n := copy(p, c.buf[in.consumed-c.start:c.n])
	in.spill.free(in.consumed + uint64(n))
	return n
}

func (in *inbound) stop() {
	for _, t := range []*time.Timer{in.ackTimer, in.watchTimer} {
		if t != nil {
			t.Stop()
		}
	}
}

// A transport is a connection that a link runs on. Whoever has the link's
// reading flag owns br and what follows it.
type transport struct {
	conn  net.Conn
	batch *Batch // nil if conn holds nothing back
	paced bool   // the connection below has been told how much it may hold

	br     *bufio.Reader
	head   head // of the frame being read
	rest   int  // bytes of its body still to come
	offset uint64
}

func newTransport(c net.Conn) *transport {
	return &transport{conn: c, batch: batchBelow(c), br: bufio.NewReaderSize(c, readAhead)}
}

// abort closes the connection, now: orderly words of TLS might block.
func (t *transport) abort() {
	if c, ok := t.conn.(interface{ NetConn() net.Conn }); ok {
		_ = c.NetConn().Close() // it is of no more use either way
		return
	}
	_ = t.conn.Close()
}

// next reads a frame without a body, or up to len(p) bytes of one that has one,
// of which the first is at t.offset.
func (t *transport) next(p []byte) (int, error) {
	if t.rest == 0 {
		b, err := t.br.Peek(1)
		if err != nil {
			return 0, err
		}
		if b, err = t.br.Peek(headSize(b[0])); err != nil {
			return 0, err
		}
		if t.head, err = decodeHead(b); err != nil {
			return 0, err
		}
		if _, err = t.br.Discard(len(b)); err != nil {
			return 0, err
		}
		t.rest, t.offset = t.head.length, t.head.offset
		if t.rest == 0 {
			return 0, nil
		}
	}
	n, err := t.br.Read(p[:min(len(p), t.rest)])
	t.rest -= n
	if n > 0 {
		err = nil // it will come again
	}
	return n, err
}

// receiveLocked reads from the transport into p and says how many bytes of the
// link it got there. It gives mu up meanwhile. There must be a transport that
// nobody reads from.
func (l *Link) receiveLocked(p []byte) int {
	t := l.cur
	l.in.reading = true
	l.mu.Unlock()
	n, err := t.next(p)
	offset := t.offset
	t.offset += uint64(n)
	l.mu.Lock()
	l.in.reading = false
	if l.in.waiting > 0 {
		l.news.Broadcast()
	}
	if l.state.closed {
		defer l.pumpLocked() // the peer's answer to our bye is still to come
	}
	switch {
	case t != l.cur: // fenced off
		return 0
	case errors.Is(err, os.ErrDeadlineExceeded):
		// interruptLocked wanted attention, and has it.
		if err = t.conn.SetReadDeadline(time.Time{}); err != nil {
			l.lostLocked(t, err)
		}
		return 0
	case errors.Is(err, ErrProtocol):
		l.brokenLocked(err)
		return 0
	case err != nil:
		l.lostLocked(t, err)
		return 0
	}
	return l.heardLocked(t.head, offset, p[:n])
}

// heardLocked takes note of what came: of h, the bytes at offset. It moves those
// that are new to the start of p.
func (l *Link) heardLocked(h head, offset uint64, p []byte) int {
	now := l.now()
	l.pulse.hear(now)
	l.confirmLocked()
	switch h.kind {
	case framePing:
		l.pulse.asked(h.allowed, h.rtt)
		l.out.pong = true
		l.todo.Signal()
		return 0
	case framePong:
		l.pulse.answered(now)
		return 0
	case frameDeaf:
		l.lostLocked(l.cur, deafness())
		return 0
	}
	if h.ack > l.out.high || offset > l.in.received {
		l.brokenLocked(fmt.Errorf("%w: ack %d of %d, offset %d of %d",
			ErrProtocol, h.ack, l.out.high, offset, l.in.received))
		return 0
	}
	l.ackedLocked(h.ack)
	switch h.kind {
	case frameBye:
		if offset != l.in.received {
			l.brokenLocked(fmt.Errorf("%w: bye at %d of %d", ErrProtocol, offset, l.in.received))
			return 0
		}
		l.byeLocked()
	case frameData:
		seen := l.in.received - offset
		if seen >= uint64(len(p)) {
			return 0
		}
		n := len(p)
		if seen > 0 {
			n = copy(p, p[seen:])
		}
		l.in.received += uint64(n)
		return n
	}
	return 0
}

// ackedLocked forgets what the peer has.
func (l *Link) ackedLocked(offset uint64) {
	if offset <= l.out.ring.base {
		return
	}
	l.out.ring.free(offset)
	l.oweLocked()
	// What is being replayed may have arrived on the transport before, after all.
	l.out.sent = max(l.out.sent, offset)
	if l.out.waiting > 0 {
		l.room.Broadcast()
	}
}

// consumedLocked notes that n bytes were handed out, and sees to it that the
// peer learns.
func (l *Link) consumedLocked(n int) {
	l.in.consumed += uint64(n)
	l.in.skipSpill()
	switch {
	case l.state.over:
	case l.in.consumed-l.in.acked >= l.in.ackEvery:
		l.out.ack = true
		l.todo.Signal()
	case !l.in.ackSet:
		l.in.ackSet = true
		if l.in.ackTimer == nil {
			l.in.ackTimer = time.AfterFunc(ackDelay, l.ackTick)
		} else {
			l.in.ackTimer.Reset(ackDelay)
		}
	}
}

// skipSpill keeps the spill's offsets in step while it is empty.
func (in *inbound) skipSpill() {
	if in.consumed == in.received {
		in.spill.base, in.spill.end = in.consumed, in.consumed
	}
}

func (l *Link) ackTick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in.ackSet = false
	if l.in.consumed > l.in.acked {
		l.out.ack = true
		l.todo.Signal()
	}
}

// interruptLocked makes whoever reads look up, and those who wait to.
func (l *Link) interruptLocked() {
	l.news.Broadcast()
	if l.cur != nil && l.in.reading {
		// If it fails the transport is broken, and the reader finds that out.
		_ = l.cur.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// watchLocked has the pump read soon, if nobody else does, for as long as
// somebody waits in Write: the acknowledgement that it waits for may be among
// what nobody reads.
func (l *Link) watchLocked() {
	if l.in.watchSet {
		return
	}
	l.in.watchSet = true
	if l.in.watchTimer == nil {
		l.in.watchTimer = time.AfterFunc(watchPeriod, l.watchTick)
	} else {
		l.in.watchTimer.Reset(watchPeriod)
	}
}

func (l *Link) watchTick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in.watchSet = false
	if l.out.waiting > 0 && !l.state.over {
		l.pumpLocked()
		l.watchLocked()
	}
}

// pumpLocked starts the pump if nobody reads.
func (l *Link) pumpLocked() {
	if l.in.reading || l.in.pumping || l.cur == nil || l.state.eof {
		return
	}
	l.in.pumping = true
	l.work.Go(l.pump)
}

// pump reads in place of a user that does not, until the user does; or for good,
// if the user has closed the link.
func (l *Link) pump() {
	buf, _ := scratches.Get().(*[record]byte)
	defer scratches.Put(buf)
	l.mu.Lock()
	defer l.mu.Unlock()
	for (l.in.waiting == 0 || l.state.closed) && !l.in.reading && l.cur != nil && !l.state.eof {
		n := l.receiveLocked(buf[:])
		if l.state.closed || n == 0 {
			continue
		}
		if l.in.spill.append(buf[:n]) < n {
			l.brokenLocked(fmt.Errorf("%w: more than its ring holds is on its way", ErrProtocol))
		}
	}
	l.in.pumping = false
	l.news.Broadcast()
}
