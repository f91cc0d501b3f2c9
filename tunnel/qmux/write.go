// Writing: which streams have their turn on a connection, and what a turn contains.

package qmux

import (
	"runtime"
	"slices"
	"time"

	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// turnSize is how many bytes of one stream are written before another stream has its
	// turn. On a slow path it is fewer: see pace.
	turnSize = 4 * (record - headroom)
	// gatherTime is for how long after a turn a writer of another stream yields first: the
	// connection is busy, and more streams may be about to write.
	gatherTime = 200 * time.Microsecond
)

// A turn is one round of writing: a record of control frames and small data, then records
// of one stream's bulk, which are written from their blocks without a copy.
type turn struct {
	b      *block // holds the record of control frames and small data; nil: there is none
	size   int    // of that record so far, including its Size field
	ping   bool   // it contains a QX_PING
	pieces []segment
	st     *stream // that the pieces are of
	fin    bool    // FIN goes with the last piece
	bytes  int     // in all pieces
	close  bool    // CONNECTION_CLOSE is in it
}

// sendLocked queues st, and writes if no write is in progress.
func (s *Session) sendLocked(st *stream) {
	c := s.connFor(st)
	if c != nil && c.delaysBulkLocked() && st.sendable() > smallWrite {
		s.wantConnLocked(st)
		c = s.connFor(st)
	}
	if c == nil || !st.queueLocked(c) || c.writing {
		return
	}
	if st.id != c.lastSmall && time.Since(c.lastSent) < gatherTime {
		c.yieldLocked()
	}
	c.startWritingLocked()
}

// yieldLocked lets other goroutines queue what they have before the next turn. Where many
// streams have little to send, one record and one system call serve several of them.
func (c *conn) yieldLocked() {
	c.writing = true
	c.s.mu.Unlock()
	runtime.Gosched()
	c.s.mu.Lock()
	c.writing = false
	if c.detached {
		c.s.requeueLocked(c)
	}
}

// queueLocked puts the stream into a queue of c, unless it is in one, is being written, is held or
// has nothing to send. It returns whether it has.
func (st *stream) queueLocked(c *conn) bool {
	o := &st.out
	if o.queued == c || o.beingWritten || !o.held.IsZero() {
		return false
	}
	n := st.sendable()
	if n == 0 && !st.owesFin() {
		return false
	}
	o.queued = c
	if n <= smallWrite {
		c.small = append(c.small, st)
	} else {
		c.bulk = append(c.bulk, st)
	}
	return true
}

// startWritingLocked writes what is pending, unless a write is in progress.
func (c *conn) startWritingLocked() {
	if c.writing || c.detached || c.writeErr != nil {
		return
	}
	c.writing = true
	c.writeLocked(false)
}

// writeLocked writes turns until nothing is pending. If it must not wait it writes one turn
// and leaves the rest to a goroutine. It unlocks the session while it writes.
func (c *conn) writeLocked(wait bool) {
	var t turn
	for !c.detached && c.writeErr == nil {
		c.takeTurnLocked(&t)
		if t.b == nil && t.st == nil {
			if c.hasWorkLocked() {
				continue // the streams that were taken have nothing to send any more
			}
			break
		}
		began, n, last := c.s.now(), t.size+t.bytes, t.close
		c.s.mu.Unlock()
		all, err := c.write(&t)
		c.s.mu.Lock()
		c.full = !all
		c.turnDoneLocked(&t, err)
		if !wait && !c.detached && c.writeErr == nil && (!all || !last && c.hasWorkLocked()) {
			c.s.goroutines.Go(func() { c.continueWriting(all, last) })
			return
		}
		if wait && c.writeErr == nil {
			c.flushLocked(n, began)
		}
		c.closeSentLocked(last)
	}
	c.writing, c.full = false, false
	if c.detached {
		c.s.requeueLocked(c)
	}
}

// continueWriting flushes the turn if not all of it was written, and writes further turns.
func (c *conn) continueWriting(all, last bool) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !all {
		c.flushLocked(record, c.s.now())
	}
	c.closeSentLocked(last)
	c.writeLocked(true)
}

// flushLocked writes the rest of a turn, waiting for the socket, and tells pace how long n
// bytes have taken. It unlocks the session meanwhile.
func (c *conn) flushLocked(n int, began time.Duration) {
	c.s.mu.Unlock()
	_, err := c.batch.flush(true)
	c.s.mu.Lock()
	if err != nil {
		c.writeFailedLocked(err) // the pace learns nothing from it
	} else if c.pace.wrote(n, began, c.s.now()) {
		c.limitUnsent()
	}
}

// inheritPaceLocked limits c to the rate of the connection that was lost last: its bulk
// continues on c, and must not queue up in front of small data.
func (c *conn) inheritPaceLocked() {
	if c.pace.limitTo(c.s.paths.lostRate) {
		c.limitUnsent()
	}
}

// limitUnsent lets the socket hold half of pace.ahead unsent (TCP_NOTSENT_LOWAT).
func (c *conn) limitUnsent() { carrier.LimitUnsent(c.tls, c.pace.ahead/2) }

// closeSentLocked ends c if CONNECTION_CLOSE has been written.
func (c *conn) closeSentLocked(last bool) {
	if last && !c.detached && c.writeErr == nil {
		c.detached, c.closeSent = true, true
		go c.closeWrite() // it may block, for lingerTimeout
	}
}

// writeFailedLocked notes that writing has failed. The socket may still hold the peer's
// CONNECTION_CLOSE, which has the reason: read ends the connection.
func (c *conn) writeFailedLocked(err error) {
	if c.writeErr != nil || c.detached {
		return
	}
	c.writeErr = err
	if !c.closing { // else it has a deadline
		_ = c.tls.SetReadDeadline(time.Now().Add(lingerTimeout)) // if that fails, so does read
	}
}

// write writes a turn, and returns whether the socket took all of it.
func (c *conn) write(t *turn) (all bool, err error) {
	if t.st != nil && beginBulk() {
		defer endBulk()
	}
	c.batch.hold()
	if t.b != nil {
		putSize(t.b.buf, t.size-sizeBytes)
		_, err = c.tls.Write(t.b.buf[:t.size])
	}
	for i := 0; i < len(t.pieces) && err == nil; i++ {
		err = c.writePiece(t, &t.pieces[i], t.fin && i == len(t.pieces)-1)
	}
	if err != nil {
		return false, err
	}
	return c.batch.flush(false)
}

// writePiece writes a piece as records. The head of each record overwrites the bytes in
// front of its data; they are restored, since the block may be retransmitted.
func (c *conn) writePiece(t *turn, g *segment, fin bool) error {
	var saved, head [headroom]byte
	at, offset := g.from, g.offset
	for at < g.to {
		h := appendStreamHead(head[:sizeBytes], t.st.id, offset, -1, false)
		n := min(g.to-at, record-len(h))
		if fin && at+n == g.to {
			h[sizeBytes] |= bitFin
		}
		putSize(h, len(h)-sizeBytes+n)
		p := g.b.buf[at-len(h) : at+n]
		copy(saved[:], p[:len(h)])
		copy(p, h)
		_, err := c.tls.Write(p)
		copy(p, saved[:len(h)])
		if err != nil {
			return err
		}
		at, offset = at+n, offset+uint64(n)
	}
	return nil
}

// hasWorkLocked says whether anything is pending.
func (c *conn) hasWorkLocked() bool {
	return len(c.small) > 0 || len(c.bulk) > 0 && !c.holdsBulkLocked() || len(c.controlStreams) > 0 || len(c.streamDone) > 0 || c.control.pending()
}

// turnDoneLocked releases a turn that was written, and queues its stream again.
func (c *conn) turnDoneLocked(t *turn, err error) {
	if t.b != nil {
		t.b.free()
	}
	for i := range t.pieces {
		t.pieces[i].b.free()
	}
	if st := t.st; st != nil {
		st.out.beingWritten = false
		if !c.s.extended {
			_ = st.ackedLocked(st.out.next, t.fin) // a peer without the extension sends no acknowledgements
		}
		if next := c.s.connFor(st); next != nil && st.queueLocked(next) && next != c {
			next.startWritingLocked()
		}
	}
	if err != nil {
		c.writeFailedLocked(err)
	}
	*t = turn{pieces: t.pieces[:0]}
}

// takeTurnLocked collects one turn.
func (c *conn) takeTurnLocked(t *turn) {
	owed := c.inFlight > 0
	c.appendControlLocked(t)
	for t.room() > headroom+smallWrite {
		st := c.popLocked(&c.small)
		if st == nil {
			break
		}
		c.takeSmallLocked(t, st)
	}
	if !c.holdsBulkLocked() {
		if st := c.popLocked(&c.bulk); st != nil {
			c.takeBulkLocked(t, st)
		}
	}
	if c.control.closeFrame != nil && len(c.small) == 0 && t.st == nil && t.room() > len(c.control.closeFrame) {
		t.add(c.control.closeFrame)
		c.control.closeFrame, t.close = nil, true
	}
	if t.b != nil || t.st != nil {
		now := time.Now()
		c.lastSent = now
		if c.owedSince.IsZero() && t.ping || c.inFlight > 0 && (c.owedSince.IsZero() || !owed) {
			c.owedSince = now
		}
		c.s.watchLocked(now)
	}
}

// popLocked takes the next stream off a queue; nil if there is none. It skips streams that
// have been moved to another queue.
func (c *conn) popLocked(q *[]*stream) *stream {
	for len(*q) > 0 {
		st := (*q)[0]
		*q = slices.Delete(*q, 0, 1)
		if st.out.queued != c {
			continue // moved to another connection
		}
		st.out.queued = nil
		n := st.sendable()
		if (n > 0 || st.owesFin()) && (n > smallWrite) == (q == &c.bulk) {
			return st
		}
		st.queueLocked(c) // into the other queue
	}
	return nil
}

// takeSmallLocked copies what a stream has to send into the turn's record.
func (c *conn) takeSmallLocked(t *turn, st *stream) {
	n, offset := st.sendable(), st.out.next
	var few [4]segment
	pieces := st.piecesLocked(few[:0], n)
	fin := st.sentLocked(c, n, false)
	t.size += len(appendStreamHead(t.tail(), st.id, offset, n, fin))
	for i := range pieces {
		t.add(pieces[i].b.buf[pieces[i].from:pieces[i].to])
	}
	c.lastSmall = st.id
	if c == c.s.firstLocked() {
		noteSmall()
	}
	if !c.s.extended {
		_ = st.ackedLocked(st.out.next, fin)
	}
}

// takeBulkLocked takes as much of a stream as one turn may carry.
func (c *conn) takeBulkLocked(t *turn, st *stream) {
	most := turnSize
	if st.out.lost == st.out.base+1 {
		most = smallWrite // no connection has carried the next record to its end
	}
	t.st, t.bytes = st, min(st.sendable(), most, c.pace.ahead)
	t.pieces = st.piecesLocked(t.pieces, t.bytes)
	for i := range t.pieces {
		t.pieces[i].b.refs.Add(1)
	}
	t.fin = st.sentLocked(c, t.bytes, true)
	st.out.beingWritten = true
	c.s.noteSentLocked(st, t.bytes)
}
