// Stream: what a program sees of one, and how its two parts begin and end.

package qmux

import (
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// maxStreamCount is how many streams there may be in the life of a session (RFC 9000,
// 4.6).
const maxStreamCount = 1 << 60

// A stream is a tunnel.Stream and a tunnel.Aborter. Its sending part is in send.go, its
// receiving part in receive.go; the states of both are RFC 9000's, section 3.
type stream struct {
	s  *Session
	id uint64

	rmu sync.Mutex // held by the one Read or WriteTo at a time
	wmu sync.Mutex // held by the one Write or ReadFrom at a time

	// The session's mutex guards all that follows.
	out    sending
	in     receiving
	closed bool // by Close or Abort
	unseen bool // the peer has opened it, and nobody has accepted it
	say    uint8
	asked  *conn // whose list of streams with something to say it is in
}

// What a stream has to say besides its data.
const (
	sayAck   = 1 << iota // STREAM_ACK, or MAX_STREAM_DATA
	sayReset             // RESET_STREAM
	sayStop              // STOP_SENDING
)

func newStream(s *Session, id uint64) *stream {
	st := &stream{s: s, id: id}
	st.out.wake = make(chan struct{}, 1)
	st.in.wake = make(chan struct{}, 1)
	st.out.credit = s.peer.streamData
	if s.isOurs(id) {
		st.out.credit = s.peer.theirData
	}
	st.in.final = noFinal
	s.openWindowLocked(&st.in)
	return st
}

func (st *stream) LocalAddr() net.Addr  { return st.s.LocalAddr() }
func (st *stream) RemoteAddr() net.Addr { return st.s.RemoteAddr() }

// opError says what went wrong, as package net does.
func (st *stream) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "hawser", Source: st.LocalAddr(), Addr: st.RemoteAddr(), Err: err}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // somebody has been told, and not looked yet
	}
}

func pastDeadline(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

// wait waits for c or a deadline; a zero one never comes. It may return sooner, and what
// it was waited for is to be looked at again. It takes half of the stack that a select
// does, and whoever reads a control stream keeps what it takes.
func wait(c chan struct{}, deadline time.Time) {
	if !deadline.IsZero() {
		t := time.AfterFunc(time.Until(deadline), func() { notify(c) })
		defer t.Stop()
	}
	<-c
}

// SetDeadline sets both deadlines.
func (st *stream) SetDeadline(t time.Time) error {
	return errors.Join(st.SetReadDeadline(t), st.SetWriteDeadline(t))
}

// SetReadDeadline bounds Read and WriteTo.
func (st *stream) SetReadDeadline(t time.Time) error {
	return st.setDeadline(&st.in.deadline, t, &st.rmu, st.in.wake)
}

// SetWriteDeadline bounds Write and ReadFrom.
func (st *stream) SetWriteDeadline(t time.Time) error {
	return st.setDeadline(&st.out.deadline, t, &st.wmu, st.out.wake)
}

// setDeadline sets a deadline of whoever holds user and waits for wake: it may be earlier
// than the one that is being waited for.
func (st *stream) setDeadline(d *time.Time, t time.Time, user *sync.Mutex, wake chan struct{}) error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if st.closed {
		return st.opError("set", net.ErrClosed)
	}
	*d = t
	if user.TryLock() {
		user.Unlock() // nobody is waiting, and who is about to looks at it first
	} else if !t.IsZero() {
		notify(wake)
	}
	return nil
}

// CloseWrite ends our direction once everything written has been sent. A Write that it
// cuts short is a reset to the peer, and no end.
func (st *stream) CloseWrite() error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if st.closed {
		return st.opError("close", net.ErrClosed)
	}
	if err := st.brokenLocked(); err != nil {
		return st.opError("close", err)
	}
	st.finishLocked()
	return nil
}

// Close ends our direction once everything written has been sent, and tells the peer
// that nobody reads what it sends (STOP_SENDING). For a Write that it cuts short see
// CloseWrite.
func (st *stream) Close() error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if st.closed {
		return nil
	}
	st.closed = true
	st.finishLocked()
	st.stopLocked()
	st.endedLocked()
	return nil
}

// Abort gives the stream up: what has not been sent is thrown away, and the peer sees a
// reset.
func (st *stream) Abort() error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	wasClosed := st.closed
	st.closed = true
	st.resetLocked()
	if !wasClosed {
		st.stopLocked()
	}
	st.endedLocked()
	return nil
}

// brokenLocked is why nothing can be written any more; nil if something can.
func (st *stream) brokenLocked() error {
	switch {
	case st.out.state == sendResetSent || st.out.state == sendResetRecvd:
		if st.in.state != recvResetRecvd && st.in.state != recvResetRead {
			return syscall.EPIPE // the peer reads no more, and may have something to say
		}
		return syscall.ECONNRESET
	case st.s.over != nil:
		return st.s.over
	}
	return nil
}

// stopLocked ends reading.
func (st *stream) stopLocked() {
	in := &st.in
	if in.state == recvOpen || in.state == recvSizeKnown {
		st.sayLocked(sayStop)
	}
	st.dropLocked()
	notify(in.wake)
	notify(st.out.wake)
}

// endedLocked forgets the stream once both its parts have come to their ends.
func (st *stream) endedLocked() {
	out := st.out.state == sendDataRecvd || st.out.state == sendResetRecvd
	if st.unseen && st.out.state >= sendDataRecvd && st.in.state == recvResetRecvd {
		// It was given up before anybody has seen it.
		st.s.waiting = slices.DeleteFunc(st.s.waiting, func(other *stream) bool { return other == st })
		st.s.acceptedLocked(st)
		st.closed = true
	}
	in := st.in.state == recvDataRead || st.in.state == recvResetRead ||
		st.closed && (st.in.state == recvDataRecvd || st.in.state == recvResetRecvd)
	if out && in && st.s.over == nil {
		st.s.forgetLocked(st)
	}
}

// sayLocked has something said besides data: at once, but for acknowledgements, which
// go with whatever goes, and soon.
func (st *stream) sayLocked(what uint8) {
	if what != sayAck {
		st.sayNowLocked(what)
	} else if st.speakerLocked(what) != nil { // else it is said on the next connection
		st.s.ackSoonLocked()
	}
}

// sayNowLocked is sayLocked for what must not wait.
func (st *stream) sayNowLocked(what uint8) {
	if c := st.speakerLocked(what); c != nil {
		c.kickLocked()
	}
}

// speakerLocked notes what is to be said, and the connection on which: an
// acknowledgement goes back the way that its bytes came.
func (st *stream) speakerLocked(what uint8) *conn {
	st.say |= what
	c := st.s.connFor(st)
	if what == sayAck && st.in.conn != nil && !st.in.conn.gone {
		c = st.in.conn
	}
	if c != nil && st.asked != c {
		st.asked = c
		c.control = append(c.control, st)
	}
	return c
}

var (
	_ tunnel.Aborter  = (*stream)(nil)
	_ tunnel.Carrier  = (*stream)(nil)
	_ tunnel.Resetter = (*stream)(nil)
)
