// Stream: a QUIC stream as tunnel wants it.

package overquic

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
)

// The codes of RESET_STREAM and STOP_SENDING: given up, or closed and nobody
// reads any more.
const (
	codeAborted quic.StreamErrorCode = 1
	codeUnread  quic.StreamErrorCode = 0
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// A stream is a tunnel.Stream and a tunnel.Aborter.
type stream struct {
	session *session
	quic    *quic.Stream

	rmu sync.Mutex // held by the one Read at a time
	one [1]byte    // looked at for no more than that; guarded by rmu

	wmu sync.Mutex // held by the one Write at a time

	mu      sync.Mutex // guards the following
	closed  bool       // by Close or Abort
	shut    bool       // by CloseWrite, Close or Abort
	said    bool       // our direction has been ended, one way or the other
	writing bool       // a Write is under way
	rdl     time.Time
	wdl     time.Time
}

func newStream(s *session, q *quic.Stream) *stream { return &stream{session: s, quic: q} }

func (st *stream) LocalAddr() net.Addr  { return st.session.localAddr() }
func (st *stream) RemoteAddr() net.Addr { return st.session.remoteAddr() }

// opError says what went wrong, as package net does.
func (st *stream) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "hawser", Source: st.LocalAddr(), Addr: st.RemoteAddr(), Err: err}
}

// wrong makes ours of QUIC's error.
func (st *stream) wrong(op string, err error) error {
	st.mu.Lock()
	closed := st.closed
	st.mu.Unlock()
	var se *quic.StreamError
	switch {
	case closed:
		err = net.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = os.ErrDeadlineExceeded
	case errors.As(err, &se):
		err = syscall.ECONNRESET
	default:
		err = st.session.explain(err)
	}
	return st.opError(op, err)
}

func expired(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

// usable says why nothing may be done; nil if something may.
func (st *stream) usable(op string, deadline *time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.closed:
		return st.opError(op, net.ErrClosed)
	case expired(*deadline):
		return st.opError(op, os.ErrDeadlineExceeded)
	}
	return nil
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
	if len(p) == 0 && b == nil {
		return 0, nil
	}
	st.rmu.Lock()
	defer st.rmu.Unlock()
	n, err := st.readOnce(p, b)
	switch {
	case n > 0 || err == nil:
		return n, nil // an error comes again
	case errors.Is(err, io.EOF):
		return 0, io.EOF
	default:
		return 0, st.wrong("read", err)
	}
}

// readOnce waits for the first byte before b takes memory.
func (st *stream) readOnce(p []byte, b *tunnel.Buffer) (int, error) {
	if b != nil {
		if _, err := st.quic.Peek(st.one[:]); err != nil {
			return 0, err
		}
		p = b.Take(0)
	}
	return st.quic.Read(p)
}

// Write hands p to QUIC, which has taken over the last packet's worth when Write
// returns, and sent the rest. On error, what was counted is on its way and
// nothing else is.
func (st *stream) Write(p []byte) (int, error) {
	if err := st.usable("write", &st.wdl); err != nil {
		return 0, err // without waiting for whoever is writing
	}
	st.wmu.Lock()
	defer st.wmu.Unlock()
	if err := st.begin(); err != nil {
		return 0, st.opError("write", err)
	}
	n, err := st.quic.Write(p)
	st.finish(n < len(p))
	if err != nil {
		return n, st.wrong("write", err)
	}
	return n, nil
}

// begin notes that a Write is under way, if it may be.
func (st *stream) begin() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.closed:
		return net.ErrClosed
	case st.shut:
		return syscall.EPIPE
	}
	st.writing = true
	return nil
}

// finish notes that a Write has returned, and does what was left to it.
func (st *stream) finish(cut bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.writing = false
	switch {
	case !st.shut:
	case cut:
		st.cancelLocked()
	default:
		st.endLocked()
	}
}

// endLocked ends our direction behind what was written.
func (st *stream) endLocked() {
	if !st.said && !st.writing {
		st.said = true
		_ = st.quic.Close() // fails only if the peer has given up
	}
}

// cancelLocked gives up our direction and what of it has not arrived.
func (st *stream) cancelLocked() {
	st.said = true
	st.quic.CancelWrite(codeAborted)
}

// CloseWrite ends our direction once all that was written is out. It does not
// wait for that.
func (st *stream) CloseWrite() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return st.opError("close", net.ErrClosed)
	}
	st.shut = true
	st.endLocked() // or Write will
	return nil
}

// Close ends both directions. What was written before still reaches the peer; if
// the peer goes on writing it is told that nobody reads.
func (st *stream) Close() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return nil
	}
	st.closed, st.shut = true, true
	if st.writing {
		_ = st.quic.SetWriteDeadline(past) // never fails
	}
	st.endLocked()
	st.quic.CancelRead(codeUnread)
	return nil
}

// Abort ends both directions at once; the peer sees a reset.
func (st *stream) Abort() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return nil
	}
	st.closed, st.shut = true, true
	st.cancelLocked()
	st.quic.CancelRead(codeAborted)
	return nil
}

// SetDeadline sets both deadlines.
func (st *stream) SetDeadline(t time.Time) error {
	return errors.Join(st.SetReadDeadline(t), st.SetWriteDeadline(t))
}

// SetReadDeadline bounds pending and later Reads.
func (st *stream) SetReadDeadline(t time.Time) error {
	return st.setDeadline(&st.rdl, st.quic.SetReadDeadline, t)
}

// SetWriteDeadline bounds pending and later Writes.
func (st *stream) SetWriteDeadline(t time.Time) error {
	return st.setDeadline(&st.wdl, st.quic.SetWriteDeadline, t)
}

func (st *stream) setDeadline(deadline *time.Time, set func(time.Time) error, t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return st.opError("set", net.ErrClosed)
	}
	*deadline = t
	return set(t)
}

var (
	_ tunnel.Stream       = (*stream)(nil)
	_ tunnel.Aborter      = (*stream)(nil)
	_ tunnel.BufferReader = (*stream)(nil)
)
