// Stream: the library's stream with a Close of both directions and typed errors.

package overyamux

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/hawser-project/hawser/tunnel"
)

// maxFrame bounds a frame, in bytes, so that streams take turns. It is a TLS record.
const maxFrame = 16 << 10

type stream struct {
	*yamux.Stream
	session *session

	writing sync.Mutex // serializes Write, so that the frames of two calls are not mixed

	mu              sync.Mutex // guards the following
	closed          bool
	ended           time.Time // when CloseWrite was called
	readBy, writeBy time.Time
}

func newStream(s *session, st *yamux.Stream, place <-chan struct{}) *stream {
	s.guard.assignPlace(st.StreamID(), place)
	return &stream{Stream: st, session: s}
}

// Read implements net.Conn.
func (s *stream) Read(p []byte) (int, error) {
	if err := s.check(&s.readBy); err != nil {
		return 0, s.wrap("read", err)
	}
	n, err := s.Stream.Read(p)
	s.session.guard.read(s.StreamID(), n)
	return n, s.wrap("read", s.failed(err))
}

// ReadBuffer implements tunnel.BufferReader. A Read of no bytes waits for data.
func (s *stream) ReadBuffer(b *tunnel.Buffer) (int, error) {
	if _, err := s.Read(nil); err != nil {
		return 0, err
	}
	return s.Read(b.Take(0))
}

// Write implements net.Conn.
func (s *stream) Write(p []byte) (n int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for {
		if err = s.check(&s.writeBy); err != nil {
			return n, s.wrap("write", err)
		}
		k, err := s.Stream.Write(p[:min(len(p), maxFrame)])
		n, p = n+k, p[k:]
		if err != nil || len(p) == 0 {
			return n, s.wrap("write", s.failed(err))
		}
	}
}

// check is why a call fails at once; nil if it does not.
func (s *stream) check(by *time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return net.ErrClosed
	case !by.IsZero() && !time.Now().Before(*by):
		return os.ErrDeadlineExceeded
	default:
		return nil
	}
}

// failed translates an error of the library.
func (s *stream) failed(err error) error {
	if err == nil {
		return nil
	}
	s.mu.Lock()
	closed, ended := s.closed, s.ended
	s.mu.Unlock()
	switch {
	case closed:
		return net.ErrClosed
	case errors.Is(err, yamux.ErrTimeout):
		return os.ErrDeadlineExceeded
	case s.session.mux.IsClosed() || s.session.Alive().Err() != nil || errors.Is(err, yamux.ErrConnectionWriteTimeout):
		// At the end of a session the library reports the end of every stream.
		return s.session.failed(err)
	case errors.Is(err, io.EOF) && (ended.IsZero() || time.Since(ended) < s.session.closeTimeout):
		return io.EOF
	case errors.Is(err, yamux.ErrStreamClosed) && !ended.IsZero():
		return syscall.EPIPE
	default: // the peer has reset it, or the library after closeTimeout
		return syscall.ECONNRESET
	}
}

func (s *stream) wrap(op string, err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // io.EOF is never wrapped here and must not be
		return err
	}
	return &net.OpError{Op: op, Net: Name, Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: err}
}

// CloseWrite implements tunnel.Stream.
func (s *stream) CloseWrite() error {
	s.mu.Lock()
	if s.closed || !s.ended.IsZero() {
		s.mu.Unlock()
		return nil
	}
	s.ended = time.Now()
	s.mu.Unlock()
	return s.finish()
}

// finish sends FIN. The library does not say that the connection did not take it in time: the peer
// would wait for it.
func (s *stream) finish() error {
	began := time.Now()
	err := s.Stream.Close()
	if time.Since(began) >= s.session.writeTimeout {
		return s.session.failed(yamux.ErrConnectionWriteTimeout)
	}
	return err
}

// Close implements net.Conn.
func (s *stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	_ = s.Stream.SetDeadline(time.Unix(1, 0)) // wakes calls that wait; never fails
	s.mu.Unlock()
	err := s.finish()
	s.session.guard.closed(s.StreamID())
	return err
}

// OnReset implements tunnel.Resetter. A peer that aborts a stream ends its direction first
// and resets the stream a minute later.
func (s *stream) OnReset(f func(error)) (stop func()) {
	return s.session.guard.onReset(s.StreamID(), func() {
		s.session.Go(func() { f(s.wrap("read", syscall.ECONNRESET)) })
	})
}

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error {
	return s.setDeadline(&s.readBy, t, s.Stream.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn.
func (s *stream) SetWriteDeadline(t time.Time) error {
	return s.setDeadline(&s.writeBy, t, s.Stream.SetWriteDeadline)
}

func (s *stream) setDeadline(by *time.Time, t time.Time, set func(time.Time) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.wrap("set", net.ErrClosed)
	}
	*by = t
	return set(t)
}
