// Stream: a stream at home and on its legs.

package lanes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// A stream is a tunnel.Stream and a tunnel.Aborter.
type stream struct {
	session *Session
	home    tunnel.Stream // the child stream on lane 0

	rmu sync.Mutex // held by the one Read at a time; guards in
	in  inbound
	wmu sync.Mutex // held by the one Write at a time; guards out
	out outbound

	mu      sync.Mutex // guards the following
	number  uint64     // 0 while its opener has not been heard
	closed  bool       // by Close or Abort
	shut    bool       // by CloseWrite, or closed
	cut     bool       // Close interrupted a Write
	failed  error      // what ended the stream, if it was neither end
	probing bool       // home's read deadline is probe's
	coming  *leg       // the peer's leg: it has come and has not been read to its end
	going   *leg       // ours: it has begun and is not over
	rdl     time.Time
	wdl     time.Time
	changed chan struct{} // closed when something above changes; nil if nobody waits
	stop    func()        // interrupts an opening; nil if there is none
}

// inbound is how the peer's direction is being read.
type inbound struct {
	decoder decoder
	rest    []byte // read at home, but comes after the leg
	lane    int    // where the leg is; 0 at home
	leg     *leg   // nil while it has not come
	quiet   bool   // home has nothing new to say while the leg is awaited
}

func newStream(s *Session, home tunnel.Stream) *stream {
	st := &stream{session: s, home: home}
	st.out.pend = st.out.room[:0]
	return st
}

// LocalAddr is lane 0's.
func (st *stream) LocalAddr() net.Addr { return st.home.LocalAddr() }

// RemoteAddr is lane 0's.
func (st *stream) RemoteAddr() net.Addr { return st.home.RemoteAddr() }

// opError says what went wrong, as package net does.
func (st *stream) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "hawser", Source: st.LocalAddr(), Addr: st.RemoteAddr(), Err: err}
}

func expired(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

// wakeLocked makes those who wait look again.
func (st *stream) wakeLocked() {
	if st.changed != nil {
		close(st.changed)
		st.changed = nil
	}
	if st.stop != nil {
		st.stop()
	}
}

// changesLocked is closed at the next change.
func (st *stream) changesLocked() <-chan struct{} {
	if st.changed == nil {
		st.changed = make(chan struct{})
	}
	return st.changed
}

// stoppedLocked says why nothing may be done in a direction; nil if something may.
func (st *stream) stoppedLocked(deadline time.Time) error {
	switch {
	case st.closed:
		return net.ErrClosed
	case st.failed != nil:
		return st.failed
	case expired(deadline):
		return os.ErrDeadlineExceeded
	default:
		return nil
	}
}

// Read reads what the peer has written, at home and on its legs.
func (st *stream) Read(p []byte) (int, error) { return st.read(p, nil) }

// ReadBuffer is for tunnel.Splice.
func (st *stream) ReadBuffer(b *tunnel.Buffer) (int, error) { return st.read(nil, b) }

// read reads into p, or into b unless that is nil. b holds nothing while anything is
// waited for.
func (st *stream) read(p []byte, b *tunnel.Buffer) (int, error) {
	st.rmu.Lock()
	defer st.rmu.Unlock()
	if len(p) == 0 && b == nil {
		st.mu.Lock()
		defer st.mu.Unlock()
		if err := st.stoppedLocked(st.rdl); err != nil {
			return 0, st.opError("read", err)
		}
		return 0, nil
	}
	for {
		var n int
		var err error
		switch {
		case st.in.leg != nil:
			if n, err = readFrom(st.in.leg.child, p, b); n == 0 && errors.Is(err, io.EOF) {
				st.legRead()
				err = nil
			}
		case st.in.lane != 0:
			err = st.awaitLeg()
		default:
			n, err = st.readHome(p, b)
		}
		if n > 0 {
			return n, nil // an error will come again
		}
		if b != nil {
			b.Free()
		}
		if err != nil {
			return 0, st.readError(err)
		}
	}
}

// readFrom reads from a child stream into p, or into b unless that is nil.
func readFrom(child tunnel.Stream, p []byte, b *tunnel.Buffer) (int, error) {
	if b != nil {
		return tunnel.ReadBuffer(child, b)
	}
	return child.Read(p)
}

// readHome reads at home. It may have to be called again.
func (st *stream) readHome(p []byte, b *tunnel.Buffer) (int, error) {
	if rest := st.in.rest; len(rest) > 0 {
		if b != nil {
			p = b.Take(len(rest))
		}
		n := copy(p, rest)
		if st.in.rest = rest[n:]; n == len(rest) {
			st.in.rest = nil
		}
		return st.take(p[:n])
	}
	// Which bounds rest, as a Buffer does.
	n, err := readFrom(st.home, p[:min(len(p), 2*maxItem)], b)
	if n == 0 {
		return 0, err
	}
	if b != nil {
		p = b.Take(n)
	}
	return st.take(p[:n])
}

// take does what b says and leaves the stream's bytes at its front.
func (st *stream) take(b []byte) (n int, err error) {
	for left := b; len(left) > 0; {
		m, rest, said, derr := st.in.decoder.decode(left)
		n += copy(b[n:], left[:m])
		if derr == nil {
			derr = st.obey(said)
		}
		if derr != nil {
			st.fail(derr)
			return n, derr
		}
		left = rest
		if said.kind == markMoved {
			// The rest comes after the leg, and before what lay there already.
			st.in.rest = append(append([]byte(nil), rest...), st.in.rest...)
			break
		}
	}
	return n, nil
}

// obey does what a mark says.
func (st *stream) obey(m mark) error {
	switch m.kind {
	case markNumber:
		st.mu.Lock()
		defer st.mu.Unlock()
		if st.closed || st.failed != nil {
			return nil // and shall not be known
		}
		return st.session.identify(st, m.value)
	case markMoved:
		st.in.lane = int(m.value)
	case markWanted:
		return st.session.wanted(int(m.value))
	}
	return nil
}

// awaitLeg waits for the leg that has been announced.
func (st *stream) awaitLeg() error {
	t := time.NewTicker(st.session.tune.probe)
	defer t.Stop()
	for began := time.Now(); ; {
		up, lanes, ended := st.session.whereabouts(st.in.lane)
		st.mu.Lock()
		g, deadline := st.coming, st.rdl
		err := st.stoppedLocked(deadline)
		changes := st.changesLocked()
		st.mu.Unlock()
		switch {
		case err != nil:
			return err
		case g != nil && g.lane.number != st.in.lane:
			err = fmt.Errorf("%w: leg on lane %d, not %d as announced", tunnel.ErrFrame, g.lane.number, st.in.lane)
		case g != nil:
			st.in.leg, st.in.quiet = g, false
			return nil
		case !up && ended != nil:
			// Whatever came in time was delivered before the lane's end was.
			err = ended
		case !up && time.Since(began) >= st.session.tune.prefix:
			err = fmt.Errorf("%w: moved to lane %d, which is not there", tunnel.Lost, st.in.lane)
		}
		if err != nil {
			st.fail(err)
			return err
		}
		if await(changes, lanes, t.C, deadline) {
			if err := st.probe(); err != nil {
				return err
			}
		}
	}
}

// probe looks whether home has been reset while a leg is awaited that will then
// never come. What it reads beside that is kept for later.
func (st *stream) probe() error {
	if st.in.quiet {
		return nil
	}
	until := time.Now().Add(st.session.tune.probe / 32)
	st.mu.Lock()
	if err := st.stoppedLocked(st.rdl); err != nil {
		st.mu.Unlock()
		return err
	}
	st.probing = true
	_ = st.home.SetReadDeadline(until) // if it fails, so will Read
	st.mu.Unlock()
	buf := make([]byte, 4<<10)
	n, err := st.home.Read(buf)
	st.in.rest = append(st.in.rest, buf[:n]...)
	st.in.quiet = len(st.in.rest) >= maxItem || errors.Is(err, io.EOF)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.probing = false
	if !st.closed {
		_ = st.home.SetReadDeadline(st.rdl) // likewise
	}
	if n > 0 || st.in.quiet || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// await waits for one of two channels or a deadline, and says whether the timer
// came instead.
func await(a, b <-chan struct{}, timer <-chan time.Time, deadline time.Time) bool {
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
	case <-timer:
		return true
	}
	return false
}

// legRead ends a leg that has been read to its end.
func (st *stream) legRead() {
	g := st.in.leg
	st.in.leg, st.in.lane = nil, 0
	st.mu.Lock()
	if st.coming == g {
		st.coming = nil
	}
	st.mu.Unlock()
	g.close() // which tells the peer
}

// arrive takes a leg that the peer has begun.
func (st *stream) arrive(g *leg) {
	g.stream = st
	st.mu.Lock()
	closed, failed, twice := st.closed, st.failed, st.coming != nil
	if !closed && failed == nil && !twice {
		st.coming = g
		_ = g.child.SetReadDeadline(st.rdl) // if it fails, so will Read
		st.wakeLocked()
	}
	st.mu.Unlock()
	switch {
	case closed:
		g.close()
	case failed != nil:
		g.abort()
	case twice:
		g.abort()
		st.fail(fmt.Errorf("%w: a leg before the last one was read", tunnel.ErrFrame))
	}
}

// bereave tells a stream that g's lane has ended with g on it.
func (st *stream) bereave(g *leg, cause error) {
	st.mu.Lock()
	mourns := st.coming == g || st.going == g && !g.ended
	st.mu.Unlock()
	g.abort()
	if mourns {
		st.fail(cause)
	}
}

// fail ends the stream, at both ends, for a reason of neither's.
func (st *stream) fail(why error) {
	st.mu.Lock()
	if st.closed || st.failed != nil {
		st.mu.Unlock()
		return
	}
	st.failed = why
	number, coming, going := st.number, st.coming, st.going
	st.wakeLocked()
	st.mu.Unlock()
	st.session.forget(number, true)
	st.abortAll(coming, going)
}

func (st *stream) abortAll(legs ...*leg) {
	_ = tunnel.Abort(st.home) // it is of no more use
	for _, g := range legs {
		if g != nil {
			g.abort()
		}
	}
}

// readError is what Read returns.
func (st *stream) readError(err error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.closed:
		err = net.ErrClosed
	case st.failed != nil:
		err = st.failed
	case errors.Is(err, io.EOF):
		return io.EOF
	}
	return st.explain("read", err)
}

// explain puts an error in its final shape. All lanes die with lane 0, which is
// then the one that knows why.
func (st *stream) explain(op string, err error) error {
	if cause := context.Cause(st.session.home.Context()); cause != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		err = cause
	}
	if _, ok := err.(*net.OpError); ok { //nolint:errorlint // wrapped once is enough
		return err
	}
	return st.opError(op, err)
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
	st.wakeLocked()
	var err error
	if !st.probing {
		err = st.home.SetReadDeadline(t)
	}
	if st.coming != nil {
		err = errors.Join(err, st.coming.child.SetReadDeadline(t))
	}
	return err
}

// SetWriteDeadline bounds pending and later Writes.
func (st *stream) SetWriteDeadline(t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return st.opError("set", net.ErrClosed)
	}
	st.wdl = t
	st.wakeLocked()
	err := st.home.SetWriteDeadline(t)
	if st.going != nil && !st.going.ended {
		err = errors.Join(err, st.going.child.SetWriteDeadline(t))
	}
	return err
}

var (
	_ tunnel.Stream  = (*stream)(nil)
	_ tunnel.Aborter = (*stream)(nil)
)
