// Stream: a QUIC stream as a tunnel.Stream.

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

// The codes of RESET_STREAM and STOP_SENDING: codeAborted after Abort, codeUnread after
// Close.
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
	opened  bool // at this end: it has a place in the session's Opened until it is closed

	writing sync.Mutex // serializes Write and the end of our direction, as the library requires

	mu     sync.Mutex  // guards closing, after which no deadline may be set
	closed atomic.Bool // by Close or Abort
}

func (st *stream) LocalAddr() net.Addr  { return st.session.localAddr() }
func (st *stream) RemoteAddr() net.Addr { return st.session.remoteAddr() }

// opError translates an error of the library, and wraps it as package net does.
func (st *stream) opError(op string, err error) error {
	var se *quic.StreamError
	switch {
	case st.closed.Load():
		err = net.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = os.ErrDeadlineExceeded
	case errors.Is(err, quic.ErrStreamClosed):
		err = syscall.EPIPE
	case errors.As(err, &se) && op == "write" && se.Remote:
		err = syscall.EPIPE // the peer reads no more, and may still send
	case errors.As(err, &se):
		err = syscall.ECONNRESET
	default:
		err = st.session.cause()
	}
	return &net.OpError{Op: op, Net: "hawser", Source: st.LocalAddr(), Addr: st.RemoteAddr(), Err: err}
}

// Read reads what the peer has written.
func (st *stream) Read(p []byte) (int, error) {
	n, err := st.quic.Read(p)
	switch {
	case n > 0 || err == nil:
		return n, nil // the next Read returns the error
	case errors.Is(err, io.EOF) && !st.closed.Load():
		return 0, io.EOF
	default:
		return 0, st.opError("read", err)
	}
}

// ReadBuffer implements tunnel.BufferReader. It waits for a byte before b takes memory.
func (st *stream) ReadBuffer(b *tunnel.Buffer) (int, error) {
	var one [1]byte
	_, err := st.quic.Peek(one[:])
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, st.opError("read", err) // a Read could return data, if the deadline was moved
	case err != nil:
		// The stream has ended. Read returns the same error, and by that completes the stream.
		return st.Read(one[:])
	}
	return st.Read(b.Take(0))
}

// Write passes p to the library. When it returns all but the last packet's worth was sent.
// After an error exactly the bytes counted are sent.
func (st *stream) Write(p []byte) (int, error) {
	st.writing.Lock()
	defer st.writing.Unlock()
	if st.closed.Load() {
		return 0, st.opError("write", net.ErrClosed)
	}
	n, err := st.quic.Write(p)
	if err == nil {
		return n, nil
	}
	if st.closed.Load() {
		st.quic.CancelWrite(codeAborted) // a Write that Close has interrupted must not look complete
	}
	return n, st.opError("write", err)
}

// OnReset implements tunnel.Resetter. Without a Read the library reports only STOP_SENDING,
// and only until our direction has ended. Abort sends STOP_SENDING with codeAborted beside
// its reset.
func (st *stream) OnReset(f func(error)) (stop func()) {
	sending := st.quic.Context()
	disarm := context.AfterFunc(sending, func() {
		if se, ok := errors.AsType[*quic.StreamError](context.Cause(sending)); ok && se.Remote && se.ErrorCode == codeAborted {
			f(st.opError("read", se))
		}
	})
	return func() { disarm() }
}

// CloseWrite ends our direction after what was written. It waits for a Write in progress, but
// not until its data was sent.
func (st *stream) CloseWrite() error {
	st.writing.Lock()
	defer st.writing.Unlock()
	if st.closed.Load() {
		return st.opError("close", net.ErrClosed)
	}
	_ = st.quic.Close() // fails only if the peer has stopped reading
	return nil
}

// Close ends both directions. What was written is still sent, and the peer is asked to send
// no more.
func (st *stream) Close() error {
	if !st.close() {
		return nil
	}
	st.writing.Lock() // soon, since close has ended a Write in progress
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

// close ends a Write in progress. It returns false if the stream was closed before.
func (st *stream) close() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed.Swap(true) {
		return false
	}
	_ = st.quic.SetWriteDeadline(past) // never fails
	if st.opened {
		<-st.session.Opened
	}
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
		return st.opError("set", net.ErrClosed)
	}
	return set(t)
}
