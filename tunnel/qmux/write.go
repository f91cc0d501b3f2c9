// Writing: whose turn it is on a connection, and what goes in one.

package qmux

import (
	"time"

	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// turnSize is how much of one stream goes before another has its turn, on a fast
	// path; a pace says how much on a slow one.
	turnSize = 4 * (record - headroom)
	// littleTurns is how many streams with little to send have their turn before one
	// with much.
	littleTurns = 8
)

// A queue is streams that wait for their turn.
type queue struct {
	streams []*stream
	head    int
}

func (q *queue) push(st *stream) { q.streams = append(q.streams, st) }

func (q *queue) len() int { return len(q.streams) - q.head }

func (q *queue) pop() *stream {
	st := q.streams[q.head]
	q.streams[q.head] = nil
	if q.head++; q.head == len(q.streams) {
		q.streams, q.head = q.streams[:0], 0
	} else if q.head > 64 && q.head > len(q.streams)/2 {
		q.streams = append(q.streams[:0], q.streams[q.head:]...)
		q.head = 0
	}
	return st
}

// A turn is what is written at a time: a record of what is small, and then records of
// one stream, sent from where they lie.
type turn struct {
	b      *block // in which the record of what is small lies; nil: there is none
	size   int    // of that record so far, with its Size
	ping   bool   // a question is in it
	pieces []segment
	st     *stream // whose pieces these are
	fin    bool    // with the last piece
	bytes  int     // of the pieces
	close  bool    // the connection, afterwards
}

// sendLocked has st's data sent: now, if nobody else is writing.
func (s *Session) sendLocked(st *stream) {
	if c := s.connFor(st); c != nil && st.queueLocked(c) {
		c.kickLocked()
	}
}

// queueLocked puts the stream into a queue of c, unless it is in one, is being written,
// or has nothing to send. It says whether it has done so.
func (st *stream) queueLocked(c *conn) bool {
	o := &st.out
	if o.queued == c || o.flying {
		return false
	}
	n := st.sendable()
	if n == 0 && !st.owesFin() {
		return false
	}
	o.queued = c
	if n <= little {
		c.little.push(st)
	} else {
		c.bulk.push(st)
	}
	return true
}

// kickLocked writes what there is to write, unless somebody does.
func (c *conn) kickLocked() {
	if c.writing || c.gone || c.failed != nil {
		return
	}
	c.writing = true
	c.writeLocked(false)
}

// writeLocked writes turn after turn. Unless it may wait it writes one, and leaves what
// cannot be written at once to a goroutine. It unlocks the session meanwhile.
func (c *conn) writeLocked(wait bool) {
	var t turn
	for !c.gone && c.failed == nil {
		c.takeLocked(&t)
		if t.b == nil && t.st == nil {
			if c.moreLocked() {
				continue // what was taken has nothing to send any more
			}
			break
		}
		began, n, last := c.s.now(), t.size+t.bytes, t.close
		c.s.mu.Unlock()
		all, err := c.write(&t)
		c.s.mu.Lock()
		c.wroteLocked(&t, err)
		if !wait && !c.gone && c.failed == nil && (!all || !last && c.moreLocked()) {
			c.s.work.Go(func() { c.goOn(all, last) })
			return
		}
		if wait && c.failed == nil {
			c.flushLocked(n, began)
		}
		c.lastLocked(last)
	}
	c.writing = false
	if c.gone {
		c.s.requeueLocked(c)
	}
}

// goOn writes what is left, if not all has left, and whatever comes after that, unless
// that was the last.
func (c *conn) goOn(all, last bool) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !all {
		c.flushLocked(record, c.s.now())
	}
	c.lastLocked(last)
	c.writeLocked(true)
}

// flushLocked has what has been written and not left leave, and takes note of how long it
// has taken to write n bytes: no more is to lie before the path than it takes in a moment.
// It unlocks the session meanwhile.
func (c *conn) flushLocked(n int, began time.Duration) {
	c.s.mu.Unlock()
	_, err := c.batch.flush(true)
	c.s.mu.Lock()
	if err != nil {
		c.failLocked(err) // and nothing is learned of the path
	} else if c.pace.wrote(n, began, c.s.now()) {
		c.limitUnsent()
	}
}

// heedLocked has c take over the rate of the connection that was lost last: what that one
// carried goes on elsewhere, and must not lie before what is small.
func (c *conn) heedLocked() {
	if c.pace.heed(c.s.paths.lostRate) {
		c.limitUnsent()
	}
}

// limitUnsent has the socket hold half of what may lie before the path.
func (c *conn) limitUnsent() { carrier.LimitUnsent(c.tls, c.pace.ahead/2) }

// lastLocked ends c if its last words have left.
func (c *conn) lastLocked(last bool) {
	if last && !c.gone && c.failed == nil {
		c.gone, c.parting = true, true
		go c.part() // what it writes may have to wait, for a second
	}
}

// failLocked takes note that nothing can be written any more. What the peer has said
// last may still lie there to be read; it tells why, and the reader ends the connection.
func (c *conn) failLocked(err error) {
	if c.failed != nil || c.gone {
		return
	}
	c.failed = err
	if !c.closing { // else it is bounded
		_ = c.tls.SetReadDeadline(time.Now().Add(parting)) // if that fails the reader has failed
	}
}

// write writes a turn, and says whether everything has left.
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

// writePiece writes a piece as records. The head of each goes where the bytes before it
// lie, which have left, and are put back: the block may have to be sent again.
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

// moreLocked says whether there is something to write.
func (c *conn) moreLocked() bool {
	return c.little.len() > 0 || c.bulk.len() > 0 || len(c.control) > 0 || len(c.done) > 0 || c.say.anything()
}

// wroteLocked takes note of a turn that was written.
func (c *conn) wroteLocked(t *turn, err error) {
	if t.b != nil {
		t.b.free()
	}
	for i := range t.pieces {
		t.pieces[i].b.free()
	}
	if st := t.st; st != nil {
		st.out.flying = false
		if !c.s.extended {
			_ = st.ackedLocked(st.out.next, t.fin) // it was sent
		}
		if next := c.s.connFor(st); next != nil && st.queueLocked(next) && next != c {
			next.kickLocked()
		}
	}
	if err != nil {
		c.failLocked(err)
	}
	*t = turn{pieces: t.pieces[:0]}
}

// takeLocked takes what goes in one turn.
func (c *conn) takeLocked(t *turn) {
	owed := c.unacked > 0
	c.controlLocked(t)
	for i := 0; i < littleTurns && t.room() > headroom+little; i++ {
		if st := c.popLocked(&c.little); st != nil {
			c.littleLocked(t, st)
		}
	}
	if st := c.popLocked(&c.bulk); st != nil {
		c.bulkLocked(t, st)
	}
	if c.say.close != nil && c.little.len() == 0 && t.st == nil && t.room() > len(c.say.close) {
		t.add(c.say.close)
		c.say.close, t.close = nil, true
	}
	if t.b != nil || t.st != nil {
		now := time.Now()
		c.wrote = now
		if c.asked.IsZero() && t.ping || c.unacked > 0 && (c.asked.IsZero() || !owed) {
			c.asked = now
		}
		c.s.watchLocked(now)
	}
}

// popLocked takes the next stream off a queue that still belongs there; nil if there is
// none.
func (c *conn) popLocked(q *queue) *stream {
	for q.len() > 0 {
		st := q.pop()
		if st.out.queued != c {
			continue // it was moved
		}
		st.out.queued = nil
		n := st.sendable()
		if (n > 0 || st.owesFin()) && (n > little) == (q == &c.bulk) {
			return st
		}
		st.queueLocked(c) // in the other one
	}
	return nil
}

// littleLocked puts what a stream has to send into the record.
func (c *conn) littleLocked(t *turn, st *stream) {
	n, offset := st.sendable(), st.out.next
	var few [4]segment
	pieces := st.piecesLocked(few[:0], n)
	fin := st.sentLocked(c, n)
	t.size += len(appendStreamHead(t.tail(), st.id, offset, n, fin))
	for i := range pieces {
		t.add(pieces[i].b.buf[pieces[i].from:pieces[i].to])
	}
	if c == c.s.firstLocked() {
		noteLittle()
	}
	if !c.s.extended {
		_ = st.ackedLocked(st.out.next, fin)
	}
}

// bulkLocked takes a turn's worth of a stream.
func (c *conn) bulkLocked(t *turn, st *stream) {
	t.st, t.bytes = st, min(st.sendable(), turnSize, c.pace.ahead)
	t.pieces = st.piecesLocked(t.pieces, t.bytes)
	for i := range t.pieces {
		t.pieces[i].b.refs.Add(1)
	}
	t.fin = st.sentLocked(c, t.bytes)
	st.out.flying = true
	c.s.carriedLocked(st, t.bytes)
}
