// The sending part of a stream (RFC 9000, 3.1): what was written and is kept until it
// is acknowledged.

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

// The states of a sending part. Data Sent is sendOpen with fin and everything sent.
type sendState uint8

const (
	sendOpen sendState = iota // Ready and Send
	sendDataSent
	sendDataRecvd
	sendResetSent
	sendResetRecvd
)

// maxUnsent is how much of a stream may lie unsent: a turn, and what is read from a
// target meanwhile.
const maxUnsent = 2 * turnSize

// A sending part holds the bytes from base to end, in segments.
type sending struct {
	state    sendState
	fin      bool // CloseWrite or Close was called
	segments []segment
	base     uint64 // offset of the first byte that is not acknowledged
	next     uint64 // of the next one to be sent
	high     uint64 // of the first one that never was
	end      uint64 // of the next one to be written
	credit   uint64 // up to which the peer takes any
	runs     []run  // who has sent what lies between base and next, in order

	queued   *conn // in one of whose queues it is
	flying   bool  // a connection is writing some of it; nothing else may be taken meanwhile
	own      *conn // the connection of its own; nil: the first one
	recent   load  // how much it sends
	deadline time.Time
	wake     chan struct{} // holds at most one
	waiting  bool          // Write or ReadFrom waits for room
	writing  bool          // Write has queued part of what it was given
}

// A segment is part of a block, and where in the stream it belongs.
type segment struct {
	b        *block
	from, to int // in b.buf
	offset   uint64
	paid     bool // counted by the session and the budget
}

func (g *segment) end() uint64 { return g.offset + uint64(g.to-g.from) }

// A run is what one connection has sent in one go.
type run struct {
	c        *conn
	from, to uint64
}

func (o *sending) unsent() int { return int(o.end - o.next) }

// Write queues p, and sends what it can without waiting for the network. It waits while
// maxUnsent bytes lie unsent, or too much is kept.
func (st *stream) Write(p []byte) (n int, err error) {
	st.wmu.Lock()
	defer st.wmu.Unlock()
	for {
		took, deadline, err := st.tryWrite(p)
		n, p = n+took, p[took:]
		if err != nil {
			return n, st.opError("write", err)
		}
		if len(p) == 0 {
			return n, nil
		}
		wait(st.out.wake, deadline)
	}
}

func (st *stream) tryWrite(p []byte) (n int, deadline time.Time, err error) {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	st.out.writing = false
	if err = st.writableLocked(); err != nil {
		return 0, time.Time{}, err
	}
	n = st.fillLocked(p, false)
	st.out.waiting, st.out.writing = n < len(p), n < len(p)
	if n > 0 {
		st.s.sendLocked(st)
	}
	return n, st.out.deadline, nil
}

// writableLocked is why nothing may be written; nil if something may.
func (st *stream) writableLocked() error {
	switch {
	case st.closed || st.out.fin:
		return net.ErrClosed
	case pastDeadline(st.out.deadline):
		return os.ErrDeadlineExceeded
	}
	return st.brokenLocked()
}

// fillLocked copies as much of p as there is room for, or all of it if it must.
func (st *stream) fillLocked(p []byte, must bool) (n int) {
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

// tailLocked is a segment with room for some of n bytes; nil if no more may be kept and
// need not be.
func (st *stream) tailLocked(n int, must bool) *segment {
	o := &st.out
	if last := len(o.segments) - 1; last >= 0 {
		if g := &o.segments[last]; g.to < len(g.b.buf) {
			return g
		}
	}
	size := smallBlock
	switch most := st.mostLocked(); {
	case n > mediumBlock && most == largeBlock:
		size = largeBlock
	case n > little && most >= mediumBlock:
		size = mediumBlock
	}
	paid := (must || !st.stuckLocked()) && st.s.keepLocked(size, must)
	if !paid {
		if len(o.segments) > 0 {
			return nil
		}
		size = smallBlock // without which the stream could not go on at all
	}
	o.segments = append(o.segments, segment{b: newBlock(size), from: headroom, to: headroom, offset: o.end, paid: paid})
	return &o.segments[len(o.segments)-1]
}

// mostLocked is how large a block may be that the stream takes: once much is kept no
// larger than what the peer takes of it now.
func (st *stream) mostLocked() int {
	room := st.out.credit - min(st.out.credit, st.out.end)
	switch {
	case room >= largeBlock || !st.s.scarceLocked():
		return largeBlock
	case room >= mediumBlock:
		return mediumBlock
	}
	return smallBlock
}

// stuckLocked says whether the peer takes so little of the stream now that the room that
// is left is not for it.
func (st *stream) stuckLocked() bool {
	return st.out.end+little > st.out.credit && st.s.scarceLocked()
}

// freeLocked gives up a segment's part of its block.
func (st *stream) freeLocked(g *segment) {
	if g.paid {
		st.s.unkeepLocked(len(g.b.buf))
	}
	g.b.free()
	g.b = nil
}

// ReadFrom is SpliceFrom for any reader.
func (st *stream) ReadFrom(r io.Reader) (n int64, err error) {
	err = st.sendAll(r, func(k int) { n += int64(k) })
	return n, err
}

// SpliceFrom sends what src has until its end, without a copy; while it waits for
// something to read from a socket it holds no memory.
func (st *stream) SpliceFrom(src net.Conn, moved func(n int)) error { return st.sendAll(src, moved) }

func (st *stream) sendAll(r io.Reader, moved func(n int)) error {
	st.wmu.Lock()
	defer st.wmu.Unlock()
	src := source{r: r}
	defer src.Free()
	for {
		var err error
		if src.most, err = st.awaitRoom(); err != nil {
			return st.opError("write", err)
		}
		n, rerr := src.read()
		if n > 0 {
			if err := st.takeFrom(&src, n); err != nil {
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

// awaitRoom waits until a block that is read may be queued, and says how large it may be.
func (st *stream) awaitRoom() (most int, err error) {
	for {
		st.s.mu.Lock()
		err = st.writableLocked()
		full := st.out.unsent() >= turnSize || len(st.out.segments) > 0 && (st.s.fullLocked() || st.stuckLocked())
		most = st.mostLocked()
		st.out.waiting = full
		deadline := st.out.deadline
		st.s.mu.Unlock()
		if err != nil || !full {
			return most, err
		}
		wait(st.out.wake, deadline)
	}
}

// takeFrom queues n bytes that src has read: its block if they are worth one.
func (st *stream) takeFrom(src *source, n int) error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if err := st.writableLocked(); err != nil {
		return err
	}
	o := &st.out
	if n > min(len(src.b.buf)/2, mediumBlock) && (len(src.b.buf) != smallBlock || !st.stuckLocked()) {
		// Whether there is room was asked before: one block more does not matter.
		st.s.keepLocked(len(src.b.buf), true)
		o.segments = append(o.segments, segment{b: src.b, from: headroom, to: headroom + n, offset: o.end, paid: true})
		src.b = nil
		o.end += uint64(n)
	} else {
		st.fillLocked(src.b.buf[headroom:][:n], true)
	}
	st.s.sendLocked(st)
	return nil
}

// finishLocked has our direction end: with a reset if that cuts a Write short, of which
// the peer would take the part that has come for all there was.
func (st *stream) finishLocked() {
	o := &st.out
	if o.fin || o.state != sendOpen {
		return
	}
	o.fin = true
	notify(o.wake)
	if o.writing {
		st.resetLocked()
		return
	}
	st.s.sendLocked(st)
}

// resetLocked gives our direction up.
func (st *stream) resetLocked() {
	o := &st.out
	if o.state == sendDataRecvd || o.state >= sendResetSent {
		return
	}
	o.state = sendResetSent
	st.discardLocked()
	st.sayLocked(sayReset)
	notify(o.wake)
}

// discardLocked throws away what is kept.
func (st *stream) discardLocked() {
	o := &st.out
	for i := range o.segments {
		st.freeLocked(&o.segments[i])
	}
	o.segments = nil
	for _, r := range o.runs {
		r.c.settledLocked(int(r.to - r.from))
	}
	o.runs = nil
	o.base, o.next, o.end = o.high, o.high, o.high
}

// sendable is how much may be sent now.
func (st *stream) sendable() int {
	o := &st.out
	if o.state != sendOpen {
		return 0
	}
	n := min(o.end, o.credit)
	if n <= o.next {
		return 0
	}
	n -= o.next
	if fresh := o.next + n; fresh > o.high { // the session's credit is for what was never sent
		n -= fresh - min(fresh, o.high+st.s.dataMax-min(st.s.dataMax, st.s.dataSent))
	}
	return int(n)
}

// owesFin says whether an end without data is to be sent.
func (st *stream) owesFin() bool {
	o := &st.out
	return o.fin && o.next == o.end && o.state == sendOpen
}

// piecesLocked adds the next n bytes to be sent to a list.
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

// sentLocked notes that c sends the next n bytes, and the end if that follows.
func (st *stream) sentLocked(c *conn, n int) (fin bool) {
	o := &st.out
	from := o.next
	o.next += uint64(n)
	st.s.stats.Sent += uint64(n)
	if o.next > o.high {
		st.s.dataSent += o.next - o.high
		o.high = o.next
	}
	if st.s.extended && n > 0 {
		c.unacked += n
		if last := len(o.runs) - 1; last >= 0 && o.runs[last].c == c && o.runs[last].to == from {
			o.runs[last].to = o.next
		} else {
			o.runs = append(o.runs, run{c: c, from: from, to: o.next})
		}
	}
	if o.waiting && o.unsent() < turnSize {
		o.waiting = false
		notify(o.wake)
	}
	if o.fin && o.next == o.end && o.state == sendOpen {
		o.state, fin = sendDataSent, true
		o.runs = append(o.runs, run{c: c, from: o.next, to: o.next})
	}
	return fin
}

// ackedLocked forgets what the peer has received.
func (st *stream) ackedLocked(received uint64, end bool) error {
	o := &st.out
	if received > o.high {
		return broken(errProtocol, "STREAM_ACK of %d bytes of %d", received, o.high)
	}
	if end && o.state == sendResetSent {
		o.state = sendResetRecvd
	}
	if o.state >= sendResetSent {
		st.endedLocked()
		return nil
	}
	if end && (!o.fin || received < o.end) {
		return broken(errProtocol, "STREAM_ACK of an end that was not sent")
	}
	if received > o.base {
		o.base = received
		o.next = max(o.next, received)
		st.trimLocked()
	}
	if end {
		o.runs = nil
		o.state = sendDataRecvd
		st.endedLocked()
	}
	if o.waiting {
		o.waiting = false
		notify(o.wake)
	}
	return nil
}

// trimLocked frees what lies before base.
func (st *stream) trimLocked() {
	o := &st.out
	k := 0
	for k < len(o.segments) && o.segments[k].end() <= o.base {
		st.freeLocked(&o.segments[k])
		k++
	}
	if k > 0 {
		o.segments = slices.Delete(o.segments, 0, k)
	}
	k = 0
	for k < len(o.runs) && o.runs[k].from < o.base {
		r := &o.runs[k]
		done := min(o.base, r.to)
		r.c.settledLocked(int(done - r.from))
		if r.from = done; done < r.to {
			break
		}
		k++
	}
	if k > 0 {
		o.runs = append(o.runs[:0], o.runs[k:]...)
	}
}

// lostLocked has everything sent again that c has sent, and what came after.
func (st *stream) lostLocked(c *conn) {
	o := &st.out
	if o.own == c {
		o.own = nil
	}
	if o.queued == c {
		o.queued = nil
	}
	for i := range o.runs {
		if o.runs[i].c != c {
			continue
		}
		for _, r := range o.runs[i:] {
			r.c.settledLocked(int(r.to - r.from))
		}
		from := o.runs[i].from
		o.runs = o.runs[:i]
		st.s.stats.Replayed += o.next - from
		o.next = from
		if o.state == sendDataSent { // the end comes after it
			o.state = sendOpen
		}
		break
	}
}
