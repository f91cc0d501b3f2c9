// The receiving part of a stream (RFC 9000, 3.2): reordering, and the calls that read it.

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

const (
	// maxGaps bounds the gaps in data received out of order: each connection of a session,
	// and each that was lost, may leave one.
	maxGaps = 64
	// handoverSize is how many bytes of a block must belong to a stream for the stream to
	// keep the block; less is copied.
	handoverSize = record / 2

	// ackEvery is how many bytes are received between two acknowledgements, if the window
	// is large enough.
	ackEvery = 256 << 10

	noFinal = 1<<64 - 1
)

// A receiving part holds the data that was not read: pieces in order up to offset next, and
// early ones behind gaps.
type receiving struct {
	state  recvState
	pieces []segment // in order, without gaps
	early  []segment // sorted by offset, none of them contiguous with pieces
	next   uint64    // of the first byte that is missing
	high   uint64    // after the last byte received
	final  uint64    // size of the stream; noFinal while that is unknown
	limit  uint64    // offset up to which the peer may send once it knows that
	told   uint64    // and the highest limit that was sent
	acked  uint64    // value of next that was last acknowledged
	conn   *conn     // on which a frame for the stream was last received
	window window

	busy     bool  // a goroutine writes to the sink
	sink     *sink // of a waiting WriteTo; nil: there is none
	deadline time.Time
	wake     chan struct{} // holds at most one
	onReset  func(error)   // called when RESET_STREAM is received; may be nil
}

// receiveLocked handles a STREAM frame that was received on c and lies in b. The stream
// may keep b.
func (st *stream) receiveLocked(c *conn, f frame, b *block) error {
	in := &st.in
	end := f.offset + uint64(len(f.data))
	in.conn = c
	switch {
	case end > in.told:
		return protocolError(errFlowControl, "stream %d: %d bytes, where %d are allowed", st.id, end, in.told)
	case in.final != noFinal && (end > in.final || f.fin && end != in.final), f.fin && end < in.high:
		return protocolError(errFinalSize, "stream %d: another end", st.id)
	case !st.s.extended && len(f.data) > 0 && f.offset != in.next: // QMux, 4.1
		return protocolError(errProtocol, "stream %d: offset %d after %d", st.id, f.offset, in.next)
	case in.state >= recvDataRecvd:
		st.queueControlLocked(pendingAck) // a retransmission: the acknowledgement was lost
		return nil
	}
	if end > in.high {
		st.s.stats.Received += end - in.high
		st.s.moved += end - in.high
		in.high = end
	}
	if f.fin {
		in.finReceived(end)
	}
	switch {
	case end <= in.next: // a retransmission, or FIN without data
		if len(f.data) > 0 {
			st.queueControlLocked(pendingAck)
		}
	case f.offset > in.next:
		if err := st.earlyLocked(f.offset, f.data, b); err != nil {
			return err
		}
	default:
		st.takeLocked(f.data[in.next-f.offset:], b)
		st.closeGapLocked()
	}
	switch {
	case in.allReceived():
		st.queueControlLocked(pendingAck)
		notify(in.wake)
		st.endedLocked()
	case in.next-in.acked >= min(ackEvery, uint64(in.window.size/4)):
		st.sendControlLocked(pendingAck)
	case in.next > in.acked:
		st.queueControlLocked(pendingAck)
	}
	return nil
}

// takeLocked takes data that is in order: it goes to the sink at once, or is kept for the
// reader.
func (st *stream) takeLocked(data []byte, b *block) {
	in := &st.in
	if st.closed {
		in.next += uint64(len(data)) // nobody reads it
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
	if n < len(data) { // in front of data received on another connection meanwhile
		in.pieces = append(st.addLocked(nil, at+uint64(n), data[n:], b), in.pieces...)
	}
	if len(in.pieces) > 0 {
		notify(in.wake)
	}
	st.consumedLocked(n)
}

// addLocked appends data to a list: with its block if it fills enough of that, else as a
// copy.
func (st *stream) addLocked(list []segment, offset uint64, data []byte, b *block) []segment {
	if len(data) >= handoverSize && b != nil {
		b.refs.Add(1)
		at := len(b.buf) - cap(data)
		st.s.holdUnreadLocked(len(b.buf))
		return append(list, segment{b: b, from: at, to: at + len(data), offset: offset})
	}
	for len(data) > 0 {
		g := (*segment)(nil)
		if last := len(list) - 1; last >= 0 && list[last].counted && list[last].end() == offset && list[last].to < len(list[last].b.buf) {
			g = &list[last]
		} else {
			size := smallBlock
			if len(data) > smallBlock {
				size = mediumBlock
			}
			st.s.holdUnreadLocked(size)
			list = append(list, segment{b: newBlock(size), offset: offset, counted: true}) // counted: a copy, which more can be appended to
			g = &list[len(list)-1]
		}
		k := copy(g.b.buf[g.to:], data)
		g.to += k
		offset += uint64(k)
		data = data[k:]
	}
	return list
}

// appendLocked appends a piece to a list: into the block of the last one if that is a copy
// with room. So a peer that sends tiny frames does not cost a block for each.
func (st *stream) appendLocked(list []segment, g segment) []segment {
	if last := len(list) - 1; last >= 0 {
		l, n := &list[last], g.to-g.from
		if l.counted && l.end() == g.offset && n < handoverSize && n <= len(l.b.buf)-l.to {
			l.to += copy(l.b.buf[l.to:], g.b.buf[g.from:g.to])
			st.releaseLocked(&g)
			return list
		}
	}
	return append(list, g)
}

// earlyLocked keeps the bytes of data, which lies behind a gap, that are not kept already.
func (st *stream) earlyLocked(offset uint64, data []byte, b *block) error {
	in := &st.in
	// The usual case: it comes after the last one.
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

// gapsLocked fails if there are too many gaps.
func (st *stream) gapsLocked() error {
	gaps, end := 0, st.in.next
	for i := range st.in.early {
		if st.in.early[i].offset != end {
			gaps++
		}
		end = st.in.early[i].end()
	}
	if gaps > maxGaps {
		return protocolError(errProtocol, "stream %d: more than %d gaps", st.id, maxGaps)
	}
	return nil
}

// closeGapLocked moves early pieces that are now in order to pieces.
func (st *stream) closeGapLocked() {
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
}

// releaseLocked releases a piece.
func (st *stream) releaseLocked(g *segment) {
	st.s.holdUnreadLocked(-len(g.b.buf))
	g.b.free()
	g.b = nil
}

// dropLocked discards all data that was not read.
func (st *stream) dropLocked() {
	in := &st.in
	for _, list := range [][]segment{in.pieces, in.early} {
		for i := range list {
			st.releaseLocked(&list[i])
		}
	}
	in.pieces, in.early = nil, nil
	st.s.closeWindowLocked(&in.window)
}

// resetByPeerLocked handles a RESET_STREAM.
func (st *stream) resetByPeerLocked(c *conn, final uint64) error {
	in := &st.in
	in.conn = c
	switch {
	case final > in.told:
		return protocolError(errFlowControl, "stream %d: reset at %d, where %d are allowed", st.id, final, in.told)
	case final < in.high, in.final != noFinal && final != in.final:
		return protocolError(errFinalSize, "stream %d: reset at %d", st.id, final)
	}
	if in.resetReceived(final) {
		st.dropLocked()
		notify(in.wake)
		st.callOnResetLocked()
	}
	st.queueControlLocked(pendingAck)
	st.endedLocked()
	return nil
}

// OnReset implements tunnel.Resetter.
func (st *stream) OnReset(f func(error)) (stop func()) {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	st.in.onReset = f
	if st.in.state == recvResetRecvd {
		st.callOnResetLocked()
	}
	return func() {
		st.s.mu.Lock()
		defer st.s.mu.Unlock()
		st.in.onReset = nil
	}
}

func (st *stream) callOnResetLocked() {
	if f := st.in.onReset; f != nil && st.s.err == nil {
		st.s.goroutines.Go(func() { f(st.opError("read", syscall.ECONNRESET)) })
	}
}

// consumedLocked notes that n bytes were read, and may raise the peer's limit.
func (st *stream) consumedLocked(n int) {
	in := &st.in
	if in.state == recvDataRecvd && len(in.pieces) == 0 {
		return // no more data will be received
	}
	if give := st.s.raiseWindowLocked(&in.window, n); give > 0 {
		in.limit += uint64(give)
		st.sendControlLocked(pendingAck)
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

// readTo waits for data and reads it into the memory that take returns.
func (st *stream) readTo(take func(there int) []byte) (int, error) {
	st.rmu.Lock()
	defer st.rmu.Unlock()
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	for {
		switch err := st.readableLocked(); {
		case errors.Is(err, io.EOF):
			return 0, io.EOF
		case err != nil:
			return 0, st.opError("read", err)
		case len(st.in.pieces) > 0:
			return st.takeOutLocked(take), nil
		}
		st.waitLocked(st.in.wake, st.in.deadline)
	}
}

// takeOutLocked reads what there is into the memory that take returns.
func (st *stream) takeOutLocked(take func(there int) []byte) (n int) {
	in := &st.in
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
	return n
}

// readableLocked is why reading fails; nil if there is data, or may be later.
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
			in.dataRead()
			st.endedLocked()
		}
		return io.EOF
	case in.state >= recvResetRecvd:
		in.resetRead()
		st.endedLocked()
		return syscall.ECONNRESET
	}
	return st.s.err
}
