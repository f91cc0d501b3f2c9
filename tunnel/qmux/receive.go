// The receiving part of a stream (RFC 9000, 3.2): what has come, and who reads it.

package qmux

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// The states of a receiving part.
type recvState uint8

const (
	recvOpen       recvState = iota // Recv
	recvSizeKnown                   // FIN has come, and not all before it
	recvDataRecvd                   // everything has
	recvDataRead                    // and was read
	recvResetRecvd                  // RESET_STREAM has come
	recvResetRead                   // and was told to who reads
)

const (
	// maxGaps bounds the gaps between what has come out of order: each connection of a
	// session, and each that was lost, may leave one.
	maxGaps = 64
	// handed is how much of a block must be a stream's for the block to be handed to
	// it; less is copied into a block of its own.
	handed = record / 2

	// ackEvery is how much may come without an acknowledgement, on a window that is
	// large enough.
	ackEvery = 256 << 10

	noFinal = 1<<64 - 1
)

// A receiving part holds what has come and was not read: pieces in order from read to
// next, and early ones behind gaps.
type receiving struct {
	state  recvState
	pieces []segment // in order, without gaps
	early  []segment // in order, behind a gap each or behind one another
	read   uint64    // offset of the next byte to be read
	next   uint64    // of the first one that has not come
	high   uint64    // behind the last one that has
	final  uint64    // size of the stream, once it is known
	limit  uint64    // up to which the peer may send
	told   uint64    // next, when it was last acknowledged
	conn   *conn     // on which something came last
	window window

	busy     bool  // somebody writes to the sink
	sink     *sink // of a WriteTo that waits; nil if there is none
	deadline time.Time
	wake     chan struct{} // holds at most one
	onReset  func(error)   // called once RESET_STREAM has come; nil if nobody asks
}

// receiveLocked takes a STREAM frame that came on c in b; it may hand b on.
func (st *stream) receiveLocked(c *conn, f frame, b *block) error {
	in := &st.in
	end := f.offset + uint64(len(f.data))
	in.conn = c
	switch {
	case end > in.limit:
		return broken(errFlowControl, "stream %d: %d bytes, where %d are allowed", st.id, end, in.limit)
	case in.final != noFinal && (end > in.final || f.fin && end != in.final), f.fin && end < in.high:
		return broken(errFinalSize, "stream %d: another end", st.id)
	case in.state >= recvDataRecvd:
		st.sayLocked(sayAck) // it was sent again: the acknowledgement is lost
		return nil
	case f.offset > in.next && !st.s.extended:
		return broken(errProtocol, "stream %d: a gap", st.id)
	}
	in.high = max(in.high, end)
	if f.fin {
		in.state, in.final = recvSizeKnown, end
	}
	switch {
	case end <= in.next: // again, or nothing but an end
		if len(f.data) > 0 {
			st.sayLocked(sayAck)
		}
	case f.offset > in.next:
		if err := st.earlyLocked(f.offset, f.data, b); err != nil {
			return err
		}
	default:
		st.takeLocked(f.data[in.next-f.offset:], b)
		st.joinLocked()
	}
	switch {
	case in.state == recvSizeKnown && in.next == in.final:
		in.state = recvDataRecvd
		st.sayLocked(sayAck)
		notify(in.wake)
		st.endedLocked()
	case in.next-in.told >= min(ackEvery, uint64(in.window.size/4)):
		st.sayNowLocked(sayAck)
	case in.next > in.told:
		st.sayLocked(sayAck)
	}
	return nil
}

// takeLocked takes data that is in order: it goes to the sink at once, or waits for its
// reader.
func (st *stream) takeLocked(data []byte, b *block) {
	in := &st.in
	if st.closed {
		in.next += uint64(len(data))
		in.read = in.next // nobody reads it
		return
	}
	at := in.next
	in.next += uint64(len(data))
	if in.sink == nil || in.busy || len(in.pieces) > 0 {
		in.pieces = st.addLocked(in.pieces, at, data, b)
		notify(in.wake)
		return
	}
	n := st.deliverLocked(data)
	if st.closed || in.state >= recvResetRecvd {
		return
	}
	if n < len(data) { // before what has come on another connection meanwhile
		in.pieces = append(st.addLocked(nil, at+uint64(n), data[n:], b), in.pieces...)
	}
	if len(in.pieces) > 0 {
		notify(in.wake)
	}
	st.consumedLocked(n)
}

// addLocked adds data to the end of a list: in its block, if it is worth that.
func (st *stream) addLocked(list []segment, offset uint64, data []byte, b *block) []segment {
	if len(data) >= handed && b != nil {
		b.refs.Add(1)
		at := len(b.buf) - cap(data)
		st.s.heldLocked(len(b.buf))
		return append(list, segment{b: b, from: at, to: at + len(data), offset: offset})
	}
	for len(data) > 0 {
		g := (*segment)(nil)
		if last := len(list) - 1; last >= 0 && list[last].paid && list[last].end() == offset && list[last].to < len(list[last].b.buf) {
			g = &list[last]
		} else {
			size := smallBlock
			if len(data) > smallBlock {
				size = mediumBlock
			}
			st.s.heldLocked(size)
			list = append(list, segment{b: newBlock(size), offset: offset, paid: true}) // paid: ours to add to
			g = &list[len(list)-1]
		}
		k := copy(g.b.buf[g.to:], data)
		g.to += k
		offset += uint64(k)
		data = data[k:]
	}
	return list
}

// appendLocked adds a piece to the end of a list: to the block of the last one, if that
// is ours to add to and has room. A peer that sends crumbs has no block kept for each.
func (st *stream) appendLocked(list []segment, g segment) []segment {
	if last := len(list) - 1; last >= 0 {
		l, n := &list[last], g.to-g.from
		if l.paid && l.end() == g.offset && n < handed && n <= len(l.b.buf)-l.to {
			l.to += copy(l.b.buf[l.to:], g.b.buf[g.from:g.to])
			st.releaseLocked(&g)
			return list
		}
	}
	return append(list, g)
}

// earlyLocked keeps data behind a gap, as far as it is not there.
func (st *stream) earlyLocked(offset uint64, data []byte, b *block) error {
	in := &st.in
	// Most come behind the last one.
	if last := len(in.early) - 1; last < 0 || in.early[last].end() <= offset {
		in.early = st.addLocked(in.early, offset, data, b)
		return st.gapsLocked()
	}
	list := in.early
	in.early = nil
	for _, g := range list {
		before := min(uint64(len(data)), g.offset-min(g.offset, offset))
		in.early = st.addLocked(in.early, offset, data[:before], nil)
		offset, data = offset+before, data[before:]
		same := min(uint64(len(data)), g.end()-min(g.end(), offset))
		offset, data = offset+same, data[same:]
		in.early = st.appendLocked(in.early, g)
	}
	in.early = st.addLocked(in.early, offset, data, nil)
	return st.gapsLocked()
}

// gapsLocked says whether there are too many gaps.
func (st *stream) gapsLocked() error {
	gaps, end := 0, st.in.next
	for i := range st.in.early {
		if st.in.early[i].offset != end {
			gaps++
		}
		end = st.in.early[i].end()
	}
	if gaps > maxGaps {
		return broken(errProtocol, "stream %d: more than %d gaps", st.id, maxGaps)
	}
	return nil
}

// joinLocked moves early pieces to those in order, now that the gap before them is
// closed.
func (st *stream) joinLocked() {
	in := &st.in
	for len(in.early) > 0 && in.early[0].offset <= in.next {
		g := in.early[0]
		in.early = in.early[1:]
		switch {
		case g.end() <= in.next || st.closed:
			in.next = max(in.next, g.end())
			st.releaseLocked(&g)
		default:
			end := g.end()
			g.from += int(in.next - g.offset)
			g.offset, in.next = in.next, end
			in.pieces = st.appendLocked(in.pieces, g)
			notify(in.wake)
		}
	}
	if st.closed {
		in.read = in.next
	}
}

// releaseLocked gives up a piece.
func (st *stream) releaseLocked(g *segment) {
	st.s.heldLocked(-len(g.b.buf))
	g.b.free()
	g.b = nil
}

// dropLocked throws away what nobody is going to read.
func (st *stream) dropLocked() {
	in := &st.in
	for _, list := range [][]segment{in.pieces, in.early} {
		for i := range list {
			st.releaseLocked(&list[i])
		}
	}
	in.pieces, in.early = nil, nil
	in.read = in.next
	st.s.closeWindowLocked(&in.window)
}

// resetByPeerLocked takes a RESET_STREAM.
func (st *stream) resetByPeerLocked(c *conn, final uint64) error {
	in := &st.in
	in.conn = c
	if final < in.high || final > in.limit || in.final != noFinal && final != in.final {
		return broken(errFinalSize, "stream %d: reset at %d", st.id, final)
	}
	if in.state < recvDataRecvd {
		in.state, in.final = recvResetRecvd, final
		st.dropLocked()
		notify(in.wake)
		st.tellResetLocked()
	}
	st.sayLocked(sayAck)
	st.endedLocked()
	return nil
}

// OnReset implements tunnel.Resetter.
func (st *stream) OnReset(f func(error)) (stop func()) {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	st.in.onReset = f
	if st.in.state == recvResetRecvd {
		st.tellResetLocked()
	}
	return func() {
		st.s.mu.Lock()
		defer st.s.mu.Unlock()
		st.in.onReset = nil
	}
}

func (st *stream) tellResetLocked() {
	if f := st.in.onReset; f != nil && st.s.over == nil {
		st.s.work.Go(func() { f(st.opError("read", syscall.ECONNRESET)) })
	}
}

// consumedLocked notes that n bytes were read.
func (st *stream) consumedLocked(n int) {
	in := &st.in
	in.read += uint64(n)
	if in.state == recvDataRecvd && in.read == in.final && len(in.pieces) == 0 {
		return // no credit is needed any more
	}
	if give := st.s.readLocked(&in.window, n); give > 0 {
		in.limit += uint64(give)
		st.sayNowLocked(sayAck)
	}
}

// Read reads what the peer has written.
func (st *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return st.readTo(func(int) []byte { return p })
}

// ReadBuffer implements tunnel.BufferReader.
func (st *stream) ReadBuffer(b *tunnel.Buffer) (int, error) { return st.readTo(b.Take) }

// readTo waits until there is something, and reads it to what take has for so many bytes.
func (st *stream) readTo(take func(there int) []byte) (int, error) {
	st.rmu.Lock()
	defer st.rmu.Unlock()
	for {
		n, deadline, err := st.tryRead(take)
		if n > 0 || errors.Is(err, io.EOF) {
			return n, err
		}
		if err != nil {
			return 0, st.opError("read", err)
		}
		wait(st.in.wake, deadline)
	}
}

// tryRead reads what is there; if nothing is, it says how long to wait.
func (st *stream) tryRead(take func(there int) []byte) (n int, deadline time.Time, err error) {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	in := &st.in
	if err = st.readableLocked(); err != nil || len(in.pieces) == 0 {
		return 0, in.deadline, err
	}
	there := 0
	for i := range in.pieces {
		there += in.pieces[i].to - in.pieces[i].from
	}
	p := take(there)
	for n < len(p) && len(in.pieces) > 0 {
		g := &in.pieces[0]
		k := copy(p[n:], g.b.buf[g.from:g.to])
		n += k
		g.from += k
		g.offset += uint64(k)
		if g.from < g.to {
			break
		}
		st.releaseLocked(g)
		in.pieces = in.pieces[1:]
	}
	st.consumedLocked(n)
	return n, in.deadline, nil
}

// readableLocked is why nothing may be read; nil if something may, or may come.
func (st *stream) readableLocked() error {
	in := &st.in
	switch {
	case st.closed:
		return net.ErrClosed
	case pastDeadline(in.deadline):
		return os.ErrDeadlineExceeded
	case len(in.pieces) > 0:
		return nil
	case in.state == recvDataRecvd || in.state == recvDataRead:
		if !in.busy {
			in.state = recvDataRead
			st.endedLocked()
		}
		return io.EOF
	case in.state >= recvResetRecvd:
		in.state = recvResetRead
		st.endedLocked()
		return syscall.ECONNRESET
	}
	return st.s.over
}
