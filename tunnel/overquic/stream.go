// Stream: a QUIC stream as tunnel wants it.

package overquic

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
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

	writing sync.Mutex // held by a Write, and to end our direction, which the library wants apart

	mu     sync.Mutex  // held to close, and to set a deadline, which must not come after that
	closed atomic.Bool // by Close or Abort
}

func newStream(s *session, q *quic.Stream) *stream { return &stream{session: s, quic: q} }

func (st *stream) LocalAddr() net.Addr  { return st.session.localAddr() }
func (st *stream) RemoteAddr() net.Addr { return st.session.remoteAddr() }

// wrong says what went wrong, as package net does.
func (st *stream) wrong(op string, err error) error {
	var se *quic.StreamError
	switch {
	case st.closed.Load():
		err = net.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = os.ErrDeadlineExceeded
	case errors.Is(err, quic.ErrStreamClosed):
		err = syscall.EPIPE
	case errors.As(err, &se) && op == "write" && se.Remote:
		err = syscall.EPIPE // the peer reads no more, and may have something to say
	case errors.As(err, &se):
		err = syscall.ECONNRESET
	default:
		err = st.session.why()
	}
	return &net.OpError{Op: op, Net: "hawser", Source: st.LocalAddr(), Addr: st.RemoteAddr(), Err: err}
}

// Read reads what the peer has written.
func (st *stream) Read(p []byte) (int, error) {
	n, err := st.quic.Read(p)
	switch {
	case n > 0 || err == nil:
		return n, nil // an error comes again
	case errors.Is(err, io.EOF) && !st.closed.Load():
		return 0, io.EOF
	default:
		return 0, st.wrong("read", err)
	}
}

// ReadBuffer is for tunnel.Splice. It waits for the first byte before b takes memory.
func (st *stream) ReadBuffer(b *tunnel.Buffer) (int, error) {
	var one [1]byte
	if _, err := st.quic.Peek(one[:]); err != nil {
		return st.Read(one[:]) // says the same
	}
	return st.Read(b.Take(0))
}

// Write hands p to QUIC, which has taken over the last packet's worth when Write
// returns, and sent the rest. On error, what was counted is on its way and
// nothing else is.
func (st *stream) Write(p []byte) (int, error) {
	st.writing.Lock()
	defer st.writing.Unlock()
	if st.closed.Load() {
		return 0, st.wrong("write", net.ErrClosed)
	}
	n, err := st.quic.Write(p)
	if err == nil {
		return n, nil
	}
	if st.closed.Load() {
		st.quic.CancelWrite(codeAborted) // what Close has cut short is not to look complete
	}
	return n, st.wrong("write", err)
}

// OnReset implements tunnel.Resetter. The library tells of a STOP_SENDING alone without a
// Read, and of that only until our direction has ended. One with codeAborted comes with a
// reset.
func (st *stream) OnReset(f func(error)) (stop func()) {
	sending := st.quic.Context()
	disarm := context.AfterFunc(sending, func() {
		var se *quic.StreamError
		if errors.As(context.Cause(sending), &se) && se.Remote && se.ErrorCode == codeAborted {
			f(st.wrong("read", se))
		}
	})
	return func() { disarm() }
}

// CloseWrite ends our direction behind what was written. It waits for a Write that is
// under way, but not for what that has written to be out.
func (st *stream) CloseWrite() error {
	st.writing.Lock()
	defer st.writing.Unlock()
	if st.closed.Load() {
		return st.wrong("close", net.ErrClosed)
	}
	_ = st.quic.Close() // fails only if the peer has given up
	return nil
}

// Close ends both directions. What was written before still reaches the peer; if
// the peer goes on writing it is told that nobody reads.
func (st *stream) Close() error {
	if !st.close() {
		return nil
	}
	st.writing.Lock() // soon: a Write that is under way has passed its deadline
	_ = st.quic.Close()
	st.writing.Unlock()
	st.quic.CancelRead(codeUnread)
	return nil
}

// Abort ends both directions at once; the peer sees a reset.
func (st *stream) Abort() error {
	if st.close() {
		st.quic.CancelWrite(codeAborted)
		st.quic.CancelRead(codeAborted)
	}
	return nil
}

// close has a Write that is under way return. It is false if the stream was closed.
func (st *stream) close() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed.Swap(true) {
		return false
	}
	_ = st.quic.SetWriteDeadline(past) // never fails
	return true
}

// SetDeadline sets both deadlines.
func (st *stream) SetDeadline(t time.Time) error {
	return errors.Join(st.SetReadDeadline(t), st.SetWriteDeadline(t))
}

// SetReadDeadline bounds pending and later Reads.
func (st *stream) SetReadDeadline(t time.Time) error {
	return st.setDeadline(st.quic.SetReadDeadline, t)
}

// SetWriteDeadline bounds pending and later Writes.
func (st *stream) SetWriteDeadline(t time.Time) error {
	return st.setDeadline(st.quic.SetWriteDeadline, t)
}

func (st *stream) setDeadline(set func(time.Time) error, t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed.Load() {
		return st.wrong("set", net.ErrClosed)
	}
	return set(t)
}

var (
	_ tunnel.Aborter      = (*stream)(nil)
	_ tunnel.BufferReader = (*stream)(nil)
	_ tunnel.Resetter     = (*stream)(nil)
)
