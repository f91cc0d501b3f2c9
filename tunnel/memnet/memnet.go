// Package memnet has connections in memory, for tests, for listeners whose connections come
// from the same process, and for the bounds and deadlines of the streams of overssh and
// overh2.
//
// Its connections behave as TCP connections do: they buffer a bounded number of
// bytes, half-close, reset, and keep deadlines. They are built on condition
// variables and timers only, so that inside a testing/synctest bubble a blocked
// Read is durably blocked. On top of that a connection can be stalled, as a
// dead NAT entry would stall it: bytes are taken and arrive nowhere.
//
// It is not a simulator: there is no delay, no loss and no packet network.
package memnet

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// window is how many bytes one direction of a connection holds.
const window = 64 << 10

// An Addr is the address of an end; any string will do.
type Addr string

// Network is "mem".
func (Addr) Network() string { return "mem" }

func (a Addr) String() string { return string(a) }

// A Conn is one end of a connection. It is a tunnel.Stream and a
// tunnel.Aborter.
type Conn struct {
	in, out       *half
	local, remote net.Addr
}

// Pipe makes a connection between two addresses and returns both ends.
func Pipe(a, b net.Addr) (*Conn, *Conn) {
	ab, ba := newHalf(), newHalf()
	return &Conn{in: ba, out: ab, local: a, remote: b}, &Conn{in: ab, out: ba, local: b, remote: a}
}

// Read reads what the other end has written.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p, nil)
	return n, c.wrap("read", err)
}

// ReadBuffer is for tunnel.Splice.
func (c *Conn) ReadBuffer(b *tunnel.Buffer) (int, error) {
	n, err := c.in.read(nil, b)
	return n, c.wrap("read", err)
}

// Write blocks while the connection holds all it can.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	return n, c.wrap("write", err)
}

// Close ends both directions. What was written before can still be read by the
// other end, whose writes fail from now on.
func (c *Conn) Close() error {
	c.out.change(func() {
		c.out.fin = cmp.Or(c.out.fin, io.EOF)
		c.out.writer.end(net.ErrClosed)
	})
	c.in.closeReader(syscall.EPIPE)
	return nil
}

// CloseWrite ends our direction.
func (c *Conn) CloseWrite() error {
	c.CloseWriteWithError(io.EOF)
	return nil
}

// CloseWriteWithError ends our direction: the other end reads what was written, and then
// err, unless the direction had an end before.
func (c *Conn) CloseWriteWithError(err error) { c.out.finish(err) }

// CloseReadWithError gives up what the other end writes: that fails with err from now
// on, unless it fails already.
func (c *Conn) CloseReadWithError(err error) { c.in.closeReader(err) }

// Abort ends both directions as a reset does: what is still buffered is lost.
func (c *Conn) Abort() error {
	c.AbortWithError(syscall.ECONNRESET)
	return nil
}

// AbortWithError is Abort that tells the other end err, unless a direction has ended before.
func (c *Conn) AbortWithError(err error) {
	// The other end may close as soon as it knows: what this end does has failed before.
	c.out.change(func() { c.out.writer.end(net.ErrClosed) })
	c.in.change(func() { c.in.reader.end(net.ErrClosed) })
	c.out.reset(net.ErrClosed, err)
	c.in.reset(err, net.ErrClosed)
}

// OnReset implements tunnel.Resetter.
func (c *Conn) OnReset(f func(error)) (stop func()) {
	disarm := context.AfterFunc(c.in.lost, func() { f(c.wrap("read", context.Cause(c.in.lost))) })
	return func() { disarm() }
}

// Stall makes both directions of the connection swallow what is written, up to
// their bounds, and deliver nothing, until Stall(false).
func (c *Conn) Stall(on bool) {
	c.StallReads(on)
	c.out.stall(on)
}

// StallReads is Stall for what the other end writes.
func (c *Conn) StallReads(on bool) { c.in.stall(on) }

// LocalAddr is this end's.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the other end's.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline bounds pending and later Reads.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.reader, t)
	return nil
}

// SetWriteDeadline bounds pending and later Writes.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writer, t)
	return nil
}

func (c *Conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // io.EOF is never wrapped here and must not be
		return err
	}
	return &net.OpError{Op: op, Net: c.local.Network(), Source: c.local, Addr: c.remote, Err: err}
}

// A half is one direction.
type half struct {
	lost context.Context // done once the writer has reset it and the reader has not ended it before
	lose context.CancelCauseFunc

	mu      sync.Mutex // guards the following
	changed sync.Cond
	buf     []byte
	fin     error // what ends the direction, as the reader is told; nil while it goes on
	stalled bool
	reader  side
	writer  side
}

// A side is what one end of a direction has to mind.
type side struct {
	err      error // why it may not go on; nil while it may
	deadline time.Time
	timer    *time.Timer
}

func (s *side) check() error {
	if s.err != nil {
		return s.err
	}
	if !s.deadline.IsZero() && !time.Now().Before(s.deadline) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (s *side) end(err error) {
	if s.err == nil {
		s.err = err
	}
	if s.timer != nil {
		s.timer.Stop()
	}
}

func newHalf() *half {
	h := new(half)
	h.lost, h.lose = context.WithCancelCause(context.Background())
	h.changed.L = &h.mu
	return h
}

// read reads into p, or into b unless that is nil.
func (h *half) read(p []byte, b *tunnel.Buffer) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		if err := h.reader.check(); err != nil {
			return 0, err
		}
		switch {
		case h.stalled && (len(p) > 0 || b != nil):
		case len(h.buf) > 0 || len(p) == 0 && b == nil:
			if b != nil {
				p = b.Take(len(h.buf))
			}
			n := copy(p, h.buf)
			if h.buf = h.buf[n:]; len(h.buf) == 0 {
				h.buf = nil // an idle connection holds no memory
			}
			h.changed.Broadcast()
			return n, nil
		case h.fin != nil:
			return 0, h.fin
		}
		h.changed.Wait()
	}
}

func (h *half) write(p []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		if err := h.writer.check(); err != nil {
			return n, err
		}
		if h.fin != nil {
			return n, syscall.EPIPE
		}
		if m := min(len(p), window-len(h.buf)); m > 0 {
			h.buf = append(h.buf, p[:m]...)
			n, p = n+m, p[m:]
			h.changed.Broadcast()
		}
		if len(p) == 0 {
			return n, nil
		}
		h.changed.Wait()
	}
}

// change calls f and wakes whoever waits.
func (h *half) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	h.changed.Broadcast()
}

func (h *half) finish(err error) { h.change(func() { h.fin = cmp.Or(h.fin, err) }) }

func (h *half) closeReader(err error) {
	h.change(func() {
		h.buf = nil
		h.reader.end(net.ErrClosed)
		h.writer.end(err)
	})
}

func (h *half) reset(writer, reader error) {
	h.change(func() {
		h.buf = nil
		h.writer.end(writer)
		if h.reader.err == nil && reader != net.ErrClosed { //nolint:errorlint // a cause may wrap it
			h.lose(reader)
		}
		h.reader.end(reader)
	})
}

func (h *half) stall(on bool) { h.change(func() { h.stalled = on }) }

// setDeadline sets the deadline of a side. After the side's end that has no effect, as for TCP.
func (h *half) setDeadline(s *side, t time.Time) {
	h.change(func() {
		if s.timer != nil {
			s.timer.Stop()
			s.timer = nil
		}
		s.deadline = t
		if d := time.Until(t); s.err == nil && !t.IsZero() && d > 0 {
			// Taking the lock makes sure that nobody is between check and Wait.
			s.timer = time.AfterFunc(d, func() { h.change(func() {}) })
		}
	})
}
