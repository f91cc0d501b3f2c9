// Stream: a yamux stream as tunnel wants it.

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

const (
	// A closed stream whose peer has not ended its direction is read for this
	// long and this many bytes, and then reset.
	lingerTime  = 5 * time.Second
	lingerBytes = 1 << 20

	// chunk is how much of a write with a deadline is on its way at a time.
	chunk = 32 << 10
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// A stream is a tunnel.Stream and a tunnel.Aborter.
type stream struct {
	session *session
	y       *yamux.Stream
	tokens  chan struct{} // holds a token of this stream's

	rmu sync.Mutex // held by the one Read at a time
	wmu sync.Mutex // held by the one Write at a time

	mu      sync.Mutex // guards the following
	closed  bool       // by Close or Abort
	shut    bool       // by CloseWrite, or closed
	eof     bool       // the peer's end has been read
	cut     bool       // something that was written did not get out
	direct  bool       // a Write is in yamux with the caller's bytes
	rdl     time.Time
	wdl     time.Time
	werr    error         // of a chunk on its own
	flight  chan struct{} // closed when the chunk on its own has landed; nil if none
	changed chan struct{} // closed when wdl or closed next change; replaced unless closed
}

func newStream(s *session, y *yamux.Stream, tokens chan struct{}) *stream {
	return &stream{session: s, y: y, tokens: tokens, changed: make(chan struct{})}
}

func (st *stream) LocalAddr() net.Addr  { return st.session.wire.LocalAddr() }
func (st *stream) RemoteAddr() net.Addr { return st.session.wire.RemoteAddr() }

// opError says what went wrong, as package net does.
func (st *stream) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "hawser", Source: st.LocalAddr(), Addr: st.RemoteAddr(), Err: err}
}

func expired(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

// Read reads what the peer has written.
func (st *stream) Read(p []byte) (int, error) {
	if err := st.readable(); err != nil {
		return 0, err // without waiting for whoever is reading
	}
	st.rmu.Lock()
	defer st.rmu.Unlock()
	if err := st.readable(); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := st.y.Read(p)
	if rerr := st.readable(); rerr != nil && errors.Is(rerr, net.ErrClosed) {
		return 0, rerr
	}
	if n > 0 {
		return n, nil // an error has to do with the window and will come again
	}
	return 0, st.readError(err)
}

// readable says why nothing may be read; nil if something may.
func (st *stream) readable() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.closed:
		return st.opError("read", net.ErrClosed)
	case expired(st.rdl):
		return st.opError("read", os.ErrDeadlineExceeded)
	}
	return nil
}

// readError makes ours of yamux's.
func (st *stream) readError(err error) error {
	switch {
	case errors.Is(err, io.EOF) && st.session.wire.hasEnded(st.y.StreamID()):
		st.mu.Lock()
		st.eof = true
		st.mu.Unlock()
		return io.EOF
	case errors.Is(err, yamux.ErrTimeout):
		return st.opError("read", os.ErrDeadlineExceeded)
	case st.session.mux.IsClosed():
		return st.opError("read", st.session.why())
	case errors.Is(err, yamux.ErrConnectionReset):
		return st.opError("read", syscall.ECONNRESET)
	default:
		return st.opError("read", err)
	}
}

// Write writes p, as the window allows.
//
// While a write deadline is set, the bytes are copied and go out on their own,
// at most 32 KiB at a time; Write returns when the last of them are on their way
// and an error is reported by the next call, as for a socket's buffer. Without a
// deadline they go out from p; a deadline set meanwhile, and Close, interrupt
// that only if it waits for the peer to read, not if it waits for the link,
// where the session's liveness is the bound.
func (st *stream) Write(p []byte) (n int, err error) {
	if err := st.writable(); err != nil {
		return 0, err // without waiting for whoever is writing
	}
	st.wmu.Lock()
	defer st.wmu.Unlock()
	for {
		if err := st.clear(); err != nil {
			return n, err
		}
		if len(p) == 0 {
			return n, nil
		}
		if st.claim() {
			m, err := st.y.Write(p)
			return n + m, st.wrote(m, len(p), err)
		}
		m := min(len(p), chunk)
		st.launch(p[:m])
		n, p = n+m, p[m:]
		if len(p) == 0 {
			return n, nil
		}
	}
}

// clear waits until nothing is on its way, and says why nothing may be written.
func (st *stream) clear() error {
	for {
		if err := st.writable(); err != nil {
			return err
		}
		st.mu.Lock()
		flight, changed, deadline := st.flight, st.changed, st.wdl
		st.mu.Unlock()
		if flight == nil {
			return nil
		}
		either(flight, changed, deadline)
	}
}

// either waits for one of two channels or a deadline; a zero one never comes.
func either(a, b <-chan struct{}, deadline time.Time) {
	var timeout <-chan time.Time
	if !deadline.IsZero() {
		t := time.NewTimer(time.Until(deadline))
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-a:
	case <-b:
	case <-timeout:
	}
}

// writable says why nothing may be written; nil if something may.
func (st *stream) writable() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.closed:
		return st.opError("write", net.ErrClosed)
	case st.shut:
		return st.opError("write", syscall.EPIPE)
	case st.werr != nil:
		return st.opError("write", st.werr)
	case expired(st.wdl):
		return st.opError("write", os.ErrDeadlineExceeded)
	}
	return nil
}

// claim says whether the write may go out from the caller's bytes.
func (st *stream) claim() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.wdl.IsZero() {
		return false
	}
	st.direct = true
	_ = st.y.SetWriteDeadline(time.Time{}) // never fails
	if st.closed {
		_ = st.y.SetWriteDeadline(past) // never fails
	}
	return true
}

// wrote ends a claim.
func (st *stream) wrote(n, want int, err error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.direct = false
	if err == nil {
		return nil
	}
	if n < want && st.closed {
		st.cut = true
	}
	return st.opError("write", st.writeErrorLocked(err))
}

// writeErrorLocked makes ours of yamux's.
func (st *stream) writeErrorLocked(err error) error {
	switch {
	case st.closed:
		return net.ErrClosed
	case errors.Is(err, yamux.ErrTimeout):
		return os.ErrDeadlineExceeded
	case st.session.mux.IsClosed():
		return st.session.why()
	case errors.Is(err, yamux.ErrConnectionReset):
		return syscall.ECONNRESET
	case errors.Is(err, yamux.ErrStreamClosed):
		return syscall.EPIPE
	default:
		return err
	}
}

// launch sends a copy of p on its own.
func (st *stream) launch(p []byte) {
	b := append([]byte(nil), p...)
	landed := make(chan struct{})
	st.mu.Lock()
	st.flight = landed
	if !st.closed {
		_ = st.y.SetWriteDeadline(time.Time{}) // never fails
	}
	st.mu.Unlock()
	st.session.aside(func() {
		_, err := st.y.Write(b)
		st.mu.Lock()
		defer st.mu.Unlock()
		if err != nil {
			st.cut = true
			st.werr = st.writeErrorLocked(err)
		}
		st.flight = nil
		close(landed)
	})
}

// land waits for what is on its way.
func (st *stream) land() {
	st.mu.Lock()
	flight := st.flight
	st.mu.Unlock()
	if flight != nil {
		<-flight
	}
}

// CloseWrite ends our direction once all that was written is out. It does not
// wait for that.
func (st *stream) CloseWrite() error {
	st.mu.Lock()
	closed, shut := st.closed, st.shut
	st.shut = true
	st.mu.Unlock()
	if closed {
		return st.opError("close", net.ErrClosed)
	}
	if shut {
		return nil
	}
	st.session.aside(st.finish)
	return nil
}

// finish sends the end of our direction, unless something is missing before it.
// No Write begins any more.
func (st *stream) finish() {
	st.wmu.Lock()   // whoever was writing is done, or has been woken
	st.wmu.Unlock() //nolint:staticcheck // nothing is to be done meanwhile
	st.land()
	st.mu.Lock()
	cut := st.cut
	st.mu.Unlock()
	if !cut {
		_ = st.y.Close() // fails only if the session is dead
	}
}

// Close ends both directions. What was written before still reaches the peer; if
// the peer goes on writing it is told, after a while, that nobody reads.
func (st *stream) Close() error {
	if !st.end() {
		return nil
	}
	st.session.aside(func() {
		if !st.windUp() {
			st.reset()
		}
		st.gone()
	})
	return nil
}

// Abort ends both directions at once; the peer sees a reset.
func (st *stream) Abort() error {
	if !st.end() {
		return nil
	}
	st.session.aside(func() {
		st.reset()
		st.gone()
	})
	return nil
}

// end marks st closed and wakes whoever waits in it. It says whether it was
// open.
func (st *stream) end() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return false
	}
	st.closed = true
	close(st.changed)
	_ = st.y.SetReadDeadline(past) // never fails
	deadline := time.Now().Add(lingerTime)
	if st.direct {
		deadline = past
	}
	_ = st.y.SetWriteDeadline(deadline) // never fails
	return true
}

// windUp ends a stream in good order: our end after the last byte, then the
// peer's. It says whether that came about.
func (st *stream) windUp() bool {
	st.finish()
	st.rmu.Lock()   // whoever was reading has been woken
	st.rmu.Unlock() //nolint:staticcheck // nothing is to be done meanwhile
	st.mu.Lock()
	eof, cut := st.eof, st.cut
	st.mu.Unlock()
	if cut || eof {
		return !cut
	}
	_ = st.y.SetReadDeadline(time.Now().Add(lingerTime)) // never fails
	buf := make([]byte, 4<<10)
	for total := 0; total <= lingerBytes; {
		n, err := st.y.Read(buf)
		if total += n; n == 0 && err != nil {
			return errors.Is(err, io.EOF)
		}
	}
	return false
}

// reset tells the peer and yamux that the stream is no more. If the link is
// broken they know.
func (st *stream) reset() {
	if !st.session.mux.IsClosed() {
		_ = st.session.wire.reset(st.y.StreamID()) // see above
	}
}

// gone gives back what the stream held.
func (st *stream) gone() {
	st.session.wire.forget(st.y.StreamID())
	<-st.tokens
}

// SetDeadline sets both deadlines.
func (st *stream) SetDeadline(t time.Time) error {
	return errors.Join(st.SetReadDeadline(t), st.SetWriteDeadline(t))
}

// SetReadDeadline bounds pending and later Reads.
func (st *stream) SetReadDeadline(t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return st.opError("set", net.ErrClosed)
	}
	st.rdl = t
	return st.y.SetReadDeadline(t)
}

// SetWriteDeadline bounds pending and later Writes; see Write.
func (st *stream) SetWriteDeadline(t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return st.opError("set", net.ErrClosed)
	}
	st.wdl = t
	close(st.changed)
	st.changed = make(chan struct{})
	if st.direct {
		return st.y.SetWriteDeadline(t)
	}
	return nil
}

var (
	_ tunnel.Stream  = (*stream)(nil)
	_ tunnel.Aborter = (*stream)(nil)
)
