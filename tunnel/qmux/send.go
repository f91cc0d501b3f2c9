// The sending part of a stream (RFC 9000, 3.1): data is retained until it is acknowledged.

package qmux

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sort"
	"time"
)

// maxUnsent bounds the unsent data of a stream, in bytes: one turn is being written while
// the next is read.
const maxUnsent = 2 * turnSize

// A sending part retains the bytes from offset base to offset end.
type sending struct {
	state    sendState
	fin      bool   // CloseWrite or Close was called
	code     uint64 // of RESET_STREAM
	segments []segment
	base     uint64    // offset of the first byte that is not acknowledged
	next     uint64    // of the next byte to send
	high     uint64    // of the first byte never sent
	end      uint64    // of the next byte to be written by the caller
	maxData  uint64    // offset up to which the peer allows data (MAX_STREAM_DATA)
	lost     uint64    // base+1 when a last connection was lost with data in flight; 0: never
	losses   int       // how many were in a row, with the same base
	held     time.Time // nothing is sent before that: it may be what breaks connections; zero: it is sent
	runs     []run     // which connection has sent what between base and next, in order

	queued       *conn // the connection that has it in a queue; nil: none
	beingWritten bool  // a connection writes a turn of it; it is in no queue meanwhile
	ownConn      *conn // its own connection; nil: it uses the first one
	load         load  // its recent rate
	deadline     time.Time
	wake         chan struct{} // holds at most one
	waiting      bool          // Write or ReadFrom waits for room
	writing      bool          // Write has queued a part of its argument
}

// A segment is a part of a block, and its place in the stream.
type segment struct {
	b        *block
	from, to int // in b.buf
	offset   uint64
	counted  bool // counted as retained (send.go), or writable (receive.go)
}

func (g *segment) end() uint64 { return g.offset + uint64(g.to-g.from) }

// A run is a range of offsets that one connection has sent.
type run struct {
	c        *conn
	from, to uint64
	bulk     bool
}

// ackedLocked notes that n bytes of it are in flight no more.
func (r *run) ackedLocked(n int) {
	if r.bulk {
		r.c.bulkInFlight -= n
	}
	r.c.ackedLocked(n)
}

func (o *sending) unsent() int { return int(o.end - o.next) }

// Write queues p and sends as much as the socket takes. It blocks while maxUnsent bytes
// are unsent or too much is retained.
func (st *stream) Write(p []byte) (n int, err error) {
	st.wmu.Lock()
	defer st.wmu.Unlock()
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	for {
		st.out.writing = false
		if err := st.writableLocked(); err != nil {
			return n, st.opError("write", err)
		}
		took := st.copyInLocked(p[n:], false)
		n += took
		st.out.waiting, st.out.writing = n < len(p), n < len(p)
		if took > 0 {
			st.s.sendLocked(st)
		}
		if n == len(p) {
			return n, nil
		}
		st.waitLocked(st.out.wake, st.out.deadline)
	}
}

// writableLocked is why the caller may not write; nil if it may.
func (st *stream) writableLocked() error {
	switch {
	case st.closed || st.out.fin:
		return net.ErrClosed
	case pastDeadline(st.out.deadline):
		return os.ErrDeadlineExceeded
	}
	return st.brokenLocked()
}

// copyInLocked copies as much of p as there is room for, or all of it if must is set.
func (st *stream) copyInLocked(p []byte, must bool) (n int) {
	o := &st.out
	for n < len(p) && (must || o.unsent() < maxUnsent) {
		g := st.tailLocked(len(p)-n, must)
		if g == nil {
			break
		}
		k := copy(g.b.buf[g.to:], p[n:])
		g.to += k
		o.end += uint64(k)
		n += k
	}
	return n
}

// tailLocked is the last segment, with room for some of n bytes; nil if no more may be
// retained and must is not set.
func (st *stream) tailLocked(n int, must bool) *segment {
	o := &st.out
	if last := len(o.segments) - 1; last >= 0 {
		if g := &o.segments[last]; g.to < len(g.b.buf) {
			return g
		}
	}
	size := smallBlock
	switch most := st.maxBlockLocked(); {
	case n > mediumBlock && most == largeBlock:
		size = largeBlock
	case n > smallWrite && most >= mediumBlock:
		size = mediumBlock
	}
	paid := (must || !st.blockedLocked()) && st.s.retainLocked(size, must)
	if !paid {
		if len(o.segments) > 0 {
			return nil
		}
		size = smallBlock // one per stream is always allowed: see budget
	}
	o.segments = append(o.segments, segment{b: newBlock(size), from: headroom, to: headroom, offset: o.end, counted: paid})
	return &o.segments[len(o.segments)-1]
}

// maxBlockLocked is the largest block that the stream may use. Once retention is scarce
// that is no more than the peer's window for the stream.
func (st *stream) maxBlockLocked() int {
	room := st.out.maxData - min(st.out.maxData, st.out.end)
	switch {
	case room >= largeBlock || !st.s.retentionScarceLocked():
		return largeBlock
	case room >= mediumBlock:
		return mediumBlock
	}
	return smallBlock
}

// blockedLocked says whether the peer's window is almost closed while retention is scarce:
// the room that is left goes to other streams.
func (st *stream) blockedLocked() bool {
	return st.out.end+smallWrite > st.out.maxData && st.s.retentionScarceLocked()
}

// freeLocked releases a segment's block.
func (st *stream) freeLocked(g *segment) {
	if g.counted && st.s.err == nil { // else failLocked has returned it
		st.s.conf.budget.give(len(g.b.buf))
		st.s.retained -= len(g.b.buf)
	}
	g.b.free()
	g.b = nil
}

// ReadFrom is SpliceFrom that counts the bytes itself.
func (st *stream) ReadFrom(r io.Reader) (n int64, err error) {
	err = st.SpliceFrom(r, func(k int) { n += int64(k) })
	return n, err
}

// SpliceFrom sends what src has until its end, without a copy. While it waits for a
// socket to become readable it holds no memory.
func (st *stream) SpliceFrom(src io.Reader, moved func(n int)) error {
	st.wmu.Lock()
	defer st.wmu.Unlock()
	from := source{r: src}
	defer from.Free()
	for {
		var err error
		if from.maxBlock, err = st.awaitRoom(); err != nil {
			return st.opError("write", err)
		}
		n, rerr := from.read()
		if n > 0 {
			if err := st.takeFrom(&from, n); err != nil {
				return st.opError("write", err)
			}
			moved(n)
		}
		switch {
		case errors.Is(rerr, io.EOF):
			return nil
		case rerr != nil:
			return rerr
		}
	}
}

// awaitRoom waits until a block may be queued, and returns its largest size.
func (st *stream) awaitRoom() (most int, err error) {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	for {
		o := &st.out
		err = st.writableLocked()
		o.waiting = o.unsent() >= turnSize || len(o.segments) > 0 && (st.s.retentionFullLocked() || st.blockedLocked())
		if err != nil || !o.waiting {
			return st.maxBlockLocked(), err
		}
		st.waitLocked(o.wake, o.deadline)
	}
}

// takeFrom queues n bytes that src has read: the block itself if it is half full, else a
// copy.
func (st *stream) takeFrom(src *source, n int) error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if err := st.writableLocked(); err != nil {
		return err
	}
	o := &st.out
	if n > min(len(src.b.buf)/2, mediumBlock) && (len(src.b.buf) != smallBlock || !st.blockedLocked()) {
		// awaitRoom has checked for room, and one block more is tolerated.
		st.s.retainLocked(len(src.b.buf), true)
		o.segments = append(o.segments, segment{b: src.b, from: headroom, to: headroom + n, offset: o.end, counted: true})
		src.b = nil
		o.end += uint64(n)
	} else {
		st.copyInLocked(src.b.buf[headroom:][:n], true)
	}
	st.s.sendLocked(st)
	return nil
}

// finishLocked ends our direction. If it interrupts a Write it resets: the peer would take
// the part that was sent for the whole.
func (st *stream) finishLocked() {
	o := &st.out
	if o.fin || o.state != sendOpen {
		return
	}
	o.fin = true
	notify(o.wake)
	if o.writing {
		st.resetLocked(streamCanceled)
		return
	}
	st.s.sendLocked(st)
}

// resetLocked resets our direction with a code.
func (st *stream) resetLocked(code uint64) {
	if !st.out.resetSent(code) {
		return
	}
	st.discardLocked()
	st.queueControlLocked(pendingReset)
	st.s.resumeBulkLocked() // the frame may go over another connection
	notify(st.out.wake)
}

// discardLocked releases all retained data.
func (st *stream) discardLocked() {
	o := &st.out
	for i := range o.segments {
		st.freeLocked(&o.segments[i])
	}
	o.segments = nil
	for _, r := range o.runs {
		r.ackedLocked(int(r.to - r.from))
	}
	o.runs = nil
	o.base, o.next, o.end = o.high, o.high, o.high
}

// sendable is how many bytes the flow control limits let the stream send now.
func (st *stream) sendable() int {
	o := &st.out
	if o.state != sendOpen {
		return 0
	}
	n := min(o.end, o.maxData)
	if n <= o.next {
		return 0
	}
	n -= o.next
	if fresh := o.next + n; fresh > o.high { // MAX_DATA counts only bytes sent for the first time
		n -= fresh - min(fresh, o.high+st.s.dataMax-min(st.s.dataMax, st.s.dataSent))
	}
	return int(n)
}

// owesFin says whether FIN is to be sent without data.
func (st *stream) owesFin() bool {
	o := &st.out
	return o.fin && o.next == o.end && o.state == sendOpen
}

// piecesLocked appends the next n bytes to send to a list.
func (st *stream) piecesLocked(list []segment, n int) []segment {
	kept, offset := st.out.segments, st.out.next
	for at := sort.Search(len(kept), func(i int) bool { return kept[i].end() > offset }); n > 0; at++ {
		g := kept[at]
		g.from += int(offset - g.offset)
		g.to = min(g.to, g.from+n)
		g.offset = offset
		list = append(list, g)
		n, offset = n-(g.to-g.from), g.end()
	}
	return list
}

// sentLocked notes that c sends the next n bytes, and whether FIN goes with them.
func (st *stream) sentLocked(c *conn, n int, bulk bool) (fin bool) {
	o := &st.out
	from := o.next
	o.next += uint64(n)
	if o.next > o.high {
		st.s.dataSent += o.next - o.high
		o.high = o.next
	}
	if st.s.extended && n > 0 {
		c.inFlight += n
		if bulk {
			c.bulkInFlight += n
		}
		if last := len(o.runs) - 1; last >= 0 && o.runs[last].c == c && o.runs[last].bulk == bulk && o.runs[last].to == from {
			o.runs[last].to = o.next
		} else {
			o.runs = append(o.runs, run{c: c, from: from, to: o.next, bulk: bulk})
		}
	}
	if o.waiting && o.unsent() < turnSize {
		o.waiting = false
		notify(o.wake)
	}
	if fin = st.owesFin(); fin {
		o.finSent()
		o.runs = append(o.runs, run{c: c, from: o.next, to: o.next})
	}
	return fin
}

// ackedLocked releases what the peer has received.
func (st *stream) ackedLocked(received uint64, end bool) error {
	o := &st.out
	if received > o.high {
		return protocolError(errProtocol, "STREAM_ACK of %d bytes of %d", received, o.high)
	}
	if end {
		o.resetAcked()
	}
	if o.state >= sendResetSent {
		st.endedLocked()
		return nil
	}
	if end && (!o.fin || received < o.end) {
		return protocolError(errProtocol, "STREAM_ACK of an end that was not sent")
	}
	held := !o.held.IsZero()
	if received > o.base {
		st.s.moved += received - o.base
		o.base, o.held = received, time.Time{} // it gets through
		o.next = max(o.next, received)
		st.trimLocked()
	}
	if end {
		o.runs = nil
		o.dataAcked()
		st.endedLocked()
	}
	if o.waiting {
		o.waiting = false
		notify(o.wake)
	}
	if held && o.held.IsZero() {
		st.s.sendLocked(st)
	}
	return nil
}

// trimLocked frees the segments and runs before base.
func (st *stream) trimLocked() {
	o := &st.out
	k := 0
	for k < len(o.segments) && o.segments[k].end() <= o.base {
		st.freeLocked(&o.segments[k])
		k++
	}
	o.segments = slices.Delete(o.segments, 0, k)
	k = 0
	for k < len(o.runs) && o.runs[k].from < o.base {
		r := &o.runs[k]
		done := min(o.base, r.to)
		r.ackedLocked(int(done - r.from))
		r.c.trustLocked(int(done - r.from))
		if r.from = done; done < r.to {
			break
		}
		k++
	}
	o.runs = slices.Delete(o.runs, 0, k)
}

// lostLocked schedules what c has sent, and all after it, for retransmission.
func (st *stream) lostLocked(c *conn) {
	o := &st.out
	if o.queued == c {
		o.queued = nil
	}
	for i := range o.runs {
		if o.runs[i].c != c {
			continue
		}
		for _, r := range o.runs[i:] {
			r.ackedLocked(int(r.to - r.from))
		}
		from := o.runs[i].from
		o.runs = o.runs[:i]
		st.s.stats.Replayed += o.next - from
		o.next = from
		o.finLost()
		break
	}
}
