// Stream: the net.Conn that callers use, and the life cycle of its two parts.

package qmux

import (
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// maxStreamCount is how many streams a session may have in its life (RFC 9000, 4.6).
const maxStreamCount = 1 << 60

// A stream is a tunnel.Stream and a tunnel.Aborter. Its sending part is in send.go, its
// receiving part in receive.go; the states of both are RFC 9000's, section 3.
type stream struct {
	s  *Session
	id uint64

	rmu sync.Mutex // serializes Read and WriteTo
	wmu sync.Mutex // serializes Write and ReadFrom

	// The session's mutex guards the following.
	out       sending
	in        receiving
	closed    bool // by Close or Abort
	control   uint8
	controlOn *conn // the connection whose controlStreams has it; nil: none
}

// The control frames that a stream can have pending.
const (
	pendingAck   = 1 << iota // STREAM_ACK, or MAX_STREAM_DATA
	pendingReset             // RESET_STREAM
	pendingStop              // STOP_SENDING
)

func newStream(s *Session, id uint64) *stream {
	st := &stream{s: s, id: id}
	st.out.wake = make(chan struct{}, 1)
	st.in.wake = make(chan struct{}, 1)
	st.out.maxData = s.peer.streamData
	if s.isOurs(id) {
		st.out.maxData = s.peer.theirData
	}
	st.in.final = noFinal
	s.openWindowLocked(&st.in)
	return st
}

// LocalAddr is the local address of the session's latest connection.
func (st *stream) LocalAddr() net.Addr { return *st.s.local.Load() }

// RemoteAddr is the remote address of the session's first connection.
func (st *stream) RemoteAddr() net.Addr { return st.s.info.Addr }

// opError wraps err as package net does.
func (st *stream) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "hawser", Source: st.LocalAddr(), Addr: st.RemoteAddr(), Err: err}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a wake-up is pending already
	}
}

func pastDeadline(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

// waitLocked waits for c or the deadline, if that is not zero, and unlocks the session
// meanwhile. It may return early: callers check their condition again. It needs half of the
// stack of a select, which matters to the goroutine that every control stream keeps waiting
// here.
func (st *stream) waitLocked(c chan struct{}, deadline time.Time) {
	st.s.mu.Unlock()
	if !deadline.IsZero() {
		t := time.AfterFunc(time.Until(deadline), func() { notify(c) })
		defer t.Stop()
	}
	<-c
	st.s.mu.Lock()
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

// setDeadline sets d. If a call that holds user waits for wake it is woken, since the new
// deadline may be the earlier one.
func (st *stream) setDeadline(d *time.Time, t time.Time, user *sync.Mutex, wake chan struct{}) error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if st.closed {
		return st.opError("set", net.ErrClosed)
	}
	*d = t
	if user.TryLock() {
		user.Unlock() // nobody waits, and the next call reads d first
	} else if !t.IsZero() {
		notify(wake)
	}
	return nil
}

// CloseWrite ends our direction once everything written has been sent. If it interrupts a
// Write the peer sees a reset, not an end.
func (st *stream) CloseWrite() error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	err := st.brokenLocked()
	if st.closed {
		err = net.ErrClosed
	}
	if err != nil {
		return st.opError("close", err)
	}
	st.finishLocked()
	return nil
}

// Close ends our direction as CloseWrite does, and asks the peer to send no more
// (STOP_SENDING).
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

// Abort ends the stream at once: unsent data is discarded, and the peer sees a reset.
func (st *stream) Abort() error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	wasClosed := st.closed
	st.closed = true
	st.resetLocked(streamCanceled)
	if !wasClosed {
		st.stopLocked()
	}
	st.endedLocked()
	return nil
}

// brokenLocked is why writing fails; nil if it does not.
func (st *stream) brokenLocked() error {
	switch {
	case st.out.state == sendResetSent || st.out.state == sendResetRecvd:
		if st.in.state != recvResetRecvd && st.in.state != recvResetRead {
			return syscall.EPIPE // the peer reads no more, and may still send
		}
		return syscall.ECONNRESET
	case st.s.err != nil:
		return st.s.err
	}
	return nil
}

// stopLocked ends the receiving part.
func (st *stream) stopLocked() {
	in := &st.in
	if in.state == recvOpen || in.state == recvSizeKnown {
		st.queueControlLocked(pendingStop)
	}
	st.dropLocked()
	notify(in.wake)
	notify(st.out.wake)
}

// endedLocked removes the stream once both its parts are in a final state.
func (st *stream) endedLocked() {
	out := st.out.state == sendDataRecvd || st.out.state == sendResetRecvd
	if st.out.state >= sendDataRecvd && st.in.state == recvResetRecvd {
		if i := slices.Index(st.s.acceptQueue, st); i >= 0 { // the peer gave it up before it was accepted
			st.s.acceptQueue = slices.Delete(st.s.acceptQueue, i, i+1)
			st.s.noteAcceptedLocked()
			st.closed = true
		}
	}
	in := st.in.state == recvDataRead || st.in.state == recvResetRead ||
		st.closed && (st.in.state == recvDataRecvd || st.in.state == recvResetRecvd)
	if out && in && st.s.err == nil {
		st.s.forgetLocked(st)
	}
}

// queueControlLocked sends a control frame: at once, but for acknowledgements, which go
// with the next turn or after ackDelay.
func (st *stream) queueControlLocked(what uint8) {
	if what != pendingAck {
		st.sendControlLocked(what)
	} else if st.noteControlLocked(what) != nil { // else it is sent on the next connection
		st.s.ackSoonLocked()
	}
}

// sendControlLocked sends a control frame at once.
func (st *stream) sendControlLocked(what uint8) {
	if c := st.noteControlLocked(what); c != nil {
		c.startWritingLocked()
	}
}

// noteControlLocked notes that a control frame is pending, and returns the connection for
// it: an acknowledgement takes the connection that the data came on.
func (st *stream) noteControlLocked(what uint8) *conn {
	st.control |= what
	c := st.s.connFor(st)
	if what == pendingAck && st.in.conn != nil && !st.in.conn.detached {
		c = st.in.conn
	}
	if old := st.controlOn; c != nil && old != c {
		if old != nil {
			old.controlStreams = slices.DeleteFunc(old.controlStreams, func(o *stream) bool { return o == st })
		}
		st.controlOn = c
		c.controlStreams = append(c.controlStreams, st)
	}
	return c
}
