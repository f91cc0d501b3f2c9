// Stream: a stream as tunnel wants it.

package mux

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// A closed stream whose peer has not ended its direction is listened to for
	// this long and this many bytes, and then reset.
	lingerTime  = 5 * time.Second
	lingerBytes = 1 << 20
)

// A stream is a tunnel.Stream and a tunnel.Aborter.
type stream struct {
	session *Session
	id      uint32

	rmu sync.Mutex // held by the one Read at a time
	wmu sync.Mutex // held by the one Write at a time

	// All that follows is guarded by the session's mutex.
	tokens chan struct{} // holds a token of this stream's; nil before it is opened or accepted
	waits  bool          // opened by this end, and in the peer's backlog

	closed bool // by Close or Abort
	shut   bool // by CloseWrite or Close
	ended  bool // by the peer: it will say no more
	said   bool // our own end has been sent
	reset  bool // by either end
	left   bool // it is not in session.streams any more
	linger int  // bytes that came for a closed stream
	timer  *time.Timer

	in struct {
		buffer
		window window
	}
	window  int // what we may still send
	pending int // what a Write under way has not yet put into the outbox
	writer  waiter
	reader  chan struct{} // wakes Read; holds at most one
	rdl     time.Time
	wdl     time.Time
}

func newStream(s *Session, id uint32) *stream {
	st := &stream{session: s, id: id, window: Least, reader: make(chan struct{}, 1)}
	st.writer.wake = make(chan struct{}, 1)
	return st
}

func (st *stream) LocalAddr() net.Addr  { return st.session.conn.LocalAddr() }
func (st *stream) RemoteAddr() net.Addr { return st.session.conn.RemoteAddr() }

// opError says what went wrong, as package net does.
func (st *stream) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "hawser", Source: st.LocalAddr(), Addr: st.RemoteAddr(), Err: err}
}

func expired(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

// wait waits for c or a deadline; a zero one never comes.
func wait(c <-chan struct{}, deadline time.Time) {
	if deadline.IsZero() {
		<-c
		return
	}
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-c:
	case <-t.C:
	}
}

// Read reads what the peer has written.
func (st *stream) Read(p []byte) (int, error) { return st.read(p, nil) }

// ReadBuffer is for tunnel.Splice.
func (st *stream) ReadBuffer(b *tunnel.Buffer) (int, error) { return st.read(nil, b) }

// read reads into p, or into b unless that is nil.
func (st *stream) read(p []byte, b *tunnel.Buffer) (int, error) {
	if err := st.usable("read", &st.rdl); err != nil {
		return 0, err // without waiting for whoever is reading
	}
	st.rmu.Lock()
	defer st.rmu.Unlock()
	for {
		n, deadline, err := st.tryRead(p, b)
		if n > 0 || len(p) == 0 && b == nil || errors.Is(err, io.EOF) {
			return n, err
		}
		if err != nil {
			return 0, st.opError("read", err)
		}
		wait(st.reader, deadline)
	}
}

// usable says why nothing may be done; nil if something may.
func (st *stream) usable(op string, deadline *time.Time) error {
	st.session.mu.Lock()
	defer st.session.mu.Unlock()
	switch {
	case st.closed:
		return st.opError(op, net.ErrClosed)
	case expired(*deadline):
		return st.opError(op, os.ErrDeadlineExceeded)
	}
	return nil
}

// tryRead reads what is there; if nothing is, it says how long to wait.
func (st *stream) tryRead(p []byte, b *tunnel.Buffer) (n int, deadline time.Time, err error) {
	s := st.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case st.closed:
		err = net.ErrClosed
	case expired(st.rdl):
		err = os.ErrDeadlineExceeded
	case len(p) == 0 && b == nil:
	case !st.in.empty():
		if b != nil {
			p = b.Take(st.in.bytes)
		}
		n = st.in.read(p)
		s.goneLocked(n)
		st.creditLocked(n)
	case st.ended:
		err = io.EOF
	case st.reset:
		err = syscall.ECONNRESET
	case s.dead:
		err = s.cause
	}
	return n, st.rdl, err
}

// creditLocked notes that n bytes were read or thrown away, and tells the peer
// when they have become many.
func (st *stream) creditLocked(n int) {
	if n == 0 || st.ended || st.left || st.session.dead {
		return
	}
	if give := st.session.readLocked(&st.in.window, n); give > 0 {
		st.session.framing.Credit(st.id, give)
	}
}

// receivedLocked takes data from the peer. It owns b if that is not nil; p lies
// in it then.
func (st *stream) receivedLocked(p []byte, b *Block) {
	st.in.window.open -= len(p)
	if st.closed {
		b.Free()
		st.ignoreLocked(len(p))
		return
	}
	st.session.cameLocked(len(p))
	if b == nil {
		st.in.write(p)
	} else {
		st.in.add(p, b)
	}
	signal(st.reader)
}

// ignoreLocked throws away bytes of a closed stream.
func (st *stream) ignoreLocked(n int) {
	if st.linger += n; st.linger > lingerBytes {
		st.resetLocked(false)
		return
	}
	st.creditLocked(n)
}

// endedLocked notes the peer's end.
func (st *stream) endedLocked() {
	st.ended = true
	signal(st.reader)
	st.settleLocked()
}

// brokenLocked notes a reset. What came before an orderly end may still be read.
func (st *stream) brokenLocked() {
	st.reset = true
	if !st.ended || st.closed {
		st.dropLocked()
	}
	st.leaveLocked()
	st.wakeLocked()
}

// dropLocked throws away what has not been read.
func (st *stream) dropLocked() {
	st.session.goneLocked(st.in.bytes)
	st.in.drop()
}

// resetLocked tells the peer that the stream is no more: because it was abandoned,
// or because nobody reads what the peer still sends.
func (st *stream) resetLocked(abandoned bool) {
	if st.left || st.session.dead {
		st.leaveLocked()
		return
	}
	st.session.framing.Reset(st.id, abandoned)
	st.brokenLocked()
}

// finishLocked sends our end.
func (st *stream) finishLocked() {
	if st.said || st.left || st.session.dead {
		return
	}
	st.said = true
	st.session.framing.Data(st.id, true, nil)
	st.settleLocked()
}

// settleLocked takes a stream that both ends have ended off the books.
func (st *stream) settleLocked() {
	if st.said && st.ended {
		st.leaveLocked()
	}
}

// leaveLocked takes st off the books. Its token goes back when it is closed as
// well.
func (st *stream) leaveLocked() {
	if !st.left {
		st.left = true
		delete(st.session.streams, st.id)
		st.session.answeredLocked(st)
		st.stopTimerLocked()
	}
	if st.closed && st.tokens != nil {
		<-st.tokens
		st.tokens = nil
		st.session.closeLocked(&st.in.window)
	}
}

func (st *stream) stopTimerLocked() {
	if st.timer != nil {
		st.timer.Stop()
	}
}

func (st *stream) wakeLocked() {
	signal(st.reader)
	signal(st.writer.wake)
}

// Write puts p into the session's outbox, as the windows allow. On error, what
// was counted is on its way and nothing else is.
func (st *stream) Write(p []byte) (n int, err error) {
	if err = st.usable("write", &st.wdl); err != nil {
		return 0, err // without waiting for whoever is writing
	}
	st.wmu.Lock()
	defer st.wmu.Unlock()
	s := st.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.shut && !st.closed {
		return 0, st.opError("write", syscall.EPIPE)
	}
	st.pending = len(p)
	for {
		if err = st.writableLocked(); err != nil || st.pending == 0 {
			break
		}
		if m := st.putLocked(p[n:]); m > 0 {
			n += m
			continue
		}
		deadline := st.wdl
		s.mu.Unlock()
		wait(st.writer.wake, deadline)
		s.mu.Lock()
	}
	s.out.leave(&st.writer)
	st.pending = 0
	if err != nil {
		return n, st.opError("write", err)
	}
	if st.shut { // meanwhile
		st.finishLocked()
	}
	return n, nil
}

// writableLocked says why nothing may be written; nil if something may.
func (st *stream) writableLocked() error {
	switch {
	case st.closed:
		return net.ErrClosed
	case st.reset:
		return syscall.ECONNRESET
	case st.session.dead:
		return st.session.cause
	case expired(st.wdl):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// putLocked puts what may go now of p into the outbox: at most one frame. If
// that is nothing then st.writer will be woken.
func (st *stream) putLocked(p []byte) int {
	o := &st.session.out
	if st.window <= 0 {
		o.leave(&st.writer)
		return 0
	}
	st.writer.bulk = len(p) > little
	if !o.enter(&st.writer) {
		return 0
	}
	n := min(len(p), o.frame(), st.window)
	st.session.framing.Data(st.id, false, p[:n])
	st.window -= n
	st.pending -= n
	o.done(&st.writer)
	return n
}

// CloseWrite ends our direction once all that was written is out. It does not
// wait for that.
func (st *stream) CloseWrite() error {
	st.session.mu.Lock()
	defer st.session.mu.Unlock()
	if st.closed {
		return st.opError("close", net.ErrClosed)
	}
	st.shut = true
	if st.pending == 0 {
		st.finishLocked() // else Write will
	}
	return nil
}

// Close ends both directions. What was written before still reaches the peer; if
// the peer goes on writing it is told, after a while, that nobody reads.
func (st *stream) Close() error {
	s := st.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.closed {
		return nil
	}
	unread := st.in.bytes
	cut := st.closeLocked()
	switch {
	case cut:
		st.resetLocked(true)
	case st.left || s.dead:
		st.leaveLocked()
	default:
		st.finishLocked()
		st.ignoreLocked(unread)
	}
	if st.left {
		return nil
	}
	st.timer = time.AfterFunc(lingerTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		st.resetLocked(false)
	})
	return nil
}

// Abort ends both directions at once; the peer sees a reset.
func (st *stream) Abort() error {
	st.session.mu.Lock()
	defer st.session.mu.Unlock()
	if !st.closed {
		st.closeLocked()
		st.resetLocked(true)
	}
	return nil
}

// closeLocked marks st closed and wakes whoever waits in it. It says whether
// something that should have been written was not.
func (st *stream) closeLocked() (cut bool) {
	st.closed, st.shut = true, true
	st.dropLocked()
	st.wakeLocked()
	return st.pending > 0
}

// SetDeadline sets both deadlines.
func (st *stream) SetDeadline(t time.Time) error {
	return errors.Join(st.SetReadDeadline(t), st.SetWriteDeadline(t))
}

// SetReadDeadline bounds pending and later Reads.
func (st *stream) SetReadDeadline(t time.Time) error {
	return st.setDeadline(&st.rdl, st.reader, t)
}

// SetWriteDeadline bounds pending and later Writes.
func (st *stream) SetWriteDeadline(t time.Time) error {
	return st.setDeadline(&st.wdl, st.writer.wake, t)
}

func (st *stream) setDeadline(deadline *time.Time, wake chan struct{}, t time.Time) error {
	st.session.mu.Lock()
	defer st.session.mu.Unlock()
	if st.closed {
		return st.opError("set", net.ErrClosed)
	}
	*deadline = t
	signal(wake)
	return nil
}

var (
	_ tunnel.Stream  = (*stream)(nil)
	_ tunnel.Aborter = (*stream)(nil)
)
