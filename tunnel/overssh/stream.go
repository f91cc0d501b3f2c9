// Stream: an SSH channel as tunnel wants it.

package overssh

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// chunk is how much a stream reads at a time, at most: what SSH has in one
	// packet. It begins with less, so that idle streams cost little.
	chunk      = 32 << 10
	firstChunk = 4 << 10
	// queue is how much a Write may leave behind, waiting to be sent; as much
	// again may be on its way.
	queue = 64 << 10
	// lingerTime is how long a closed stream tries to send what was written
	// before it gives up.
	lingerTime = 10 * time.Second
)

// A stream is a tunnel.Stream and a tunnel.Aborter. Two goroutines stand between
// a caller and the channel, whose calls cannot be interrupted: fetch, which reads
// ahead by at most two chunks, and send, which runs while there is something to
// send.
type stream struct {
	session *session
	ch      ssh.Channel
	remote  net.Addr
	sent    sync.WaitGroup // send
	fetched chan struct{}  // closed when fetch returns
	writing sync.Mutex     // held by the one Write at a time

	mu       sync.Mutex // guards the following
	readable sync.Cond  // Read and fetch wait for it; shares mu
	writable sync.Cond  // Write and Close's rest wait for it; shares mu
	closed   bool       // by Close or Abort
	shut     bool       // by CloseWrite, or closed
	dead     bool       // the session is over
	in       []byte     // read and not yet taken
	rerr     error      // what comes after in
	out      []byte     // written and not yet on its way
	sending  bool       // send runs
	ended    bool       // our end has been sent
	werr     error      // why nothing can be sent any more
	rdl      deadline
	wdl      deadline
}

func newStream(s *session, ch ssh.Channel, t target) *stream {
	st := &stream{session: s, ch: ch, remote: targetAddr(t.addr), fetched: make(chan struct{})}
	st.readable.L, st.writable.L = &st.mu, &st.mu
	return st
}

// A targetAddr is what a stream leads to.
type targetAddr string

func (a targetAddr) Network() string { return "tcp" }
func (a targetAddr) String() string  { return string(a) }

// A deadline wakes whoever waits when it passes.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) setLocked(t time.Time, wake *sync.Cond) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, func() {
			wake.L.Lock()
			defer wake.L.Unlock()
			wake.Broadcast()
		})
	}
	wake.Broadcast()
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// LocalAddr is this end of the SSH connection.
func (st *stream) LocalAddr() net.Addr { return st.session.wire.LocalAddr() }

// RemoteAddr is the target, as it was dialed.
func (st *stream) RemoteAddr() net.Addr { return st.remote }

// opError says what went wrong, as package net does.
func (st *stream) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "ssh", Source: st.LocalAddr(), Addr: st.remote, Err: err}
}

// Read reads what the target has sent.
func (st *stream) Read(p []byte) (int, error) { return st.read(p, nil) }

// ReadBuffer is for tunnel.Splice.
func (st *stream) ReadBuffer(b *tunnel.Buffer) (int, error) { return st.read(nil, b) }

// read reads into p, or into b unless that is nil.
func (st *stream) read(p []byte, b *tunnel.Buffer) (int, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		switch {
		case st.closed:
			return 0, st.opError("read", net.ErrClosed)
		case st.rdl.passed():
			return 0, st.opError("read", os.ErrDeadlineExceeded)
		case len(p) == 0 && b == nil:
			return 0, nil
		case len(st.in) > 0:
			if b != nil {
				p = b.Take(len(st.in))
			}
			n := copy(p, st.in)
			if st.in = st.in[n:]; len(st.in) == 0 {
				st.readable.Broadcast()
			}
			return n, nil
		case st.rerr == io.EOF: //nolint:errorlint // it is never wrapped, and must not be
			return 0, io.EOF
		case st.rerr != nil:
			return 0, st.opError("read", st.rerr)
		}
		st.readable.Wait()
	}
}

// fetch reads from the channel into one buffer while the other is being taken.
func (st *stream) fetch() {
	defer close(st.fetched)
	var bufs [2][]byte
	for i, size := 0, firstChunk; ; i = 1 - i {
		if len(bufs[i]) < size {
			bufs[i] = make([]byte, size)
		}
		n, err := st.ch.Read(bufs[i])
		if err != nil {
			err = st.readError(err)
		}
		if !st.offer(bufs[i][:n], err) {
			return
		}
		if n == size {
			size = min(2*size, chunk)
		}
	}
}

// readError says what an error of the channel's means. It has io.EOF for all.
func (st *stream) readError(err error) error {
	switch {
	case !errors.Is(err, io.EOF):
		return err
	case st.session.wire.alive():
		return io.EOF
	default:
		<-st.session.gone // then it is known why
		return st.session.why()
	}
}

// offer waits until what was offered before is taken, and offers b. It says
// whether there is any use in reading on.
func (st *stream) offer(b []byte, err error) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for len(st.in) > 0 && !st.closed && !st.dead {
		st.readable.Wait()
	}
	switch {
	case st.closed:
		return false
	case len(st.in) > 0: // and dead: what is left is not the end
		st.rerr = st.session.why()
		return false
	}
	st.in, st.rerr = b, err
	st.readable.Broadcast()
	return err == nil
}

// Write takes p, as the queue allows, and sends it beside the caller: it returns
// when the last of p is in the queue.
func (st *stream) Write(p []byte) (n int, err error) {
	if err := st.mayWrite(); err != nil {
		return 0, err // without waiting for whoever is writing
	}
	st.writing.Lock()
	defer st.writing.Unlock()
	st.mu.Lock()
	defer st.mu.Unlock()
	for {
		if err := st.mayWriteLocked(); err != nil {
			return n, err
		}
		m := min(len(p), queue-len(st.out))
		st.out = append(st.out, p[:m]...)
		n, p = n+m, p[m:]
		st.sendLocked()
		if len(p) == 0 {
			return n, nil
		}
		st.writable.Wait()
	}
}

func (st *stream) mayWrite() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.mayWriteLocked()
}

// mayWriteLocked says why nothing may be written; nil if something may.
func (st *stream) mayWriteLocked() error {
	switch {
	case st.closed:
		return st.opError("write", net.ErrClosed)
	case st.shut:
		return st.opError("write", syscall.EPIPE)
	case st.werr != nil:
		return st.opError("write", st.werr)
	case st.wdl.passed():
		return st.opError("write", os.ErrDeadlineExceeded)
	}
	return nil
}

// sendLocked sees to it that what has been written, and our end, are sent.
func (st *stream) sendLocked() {
	if st.sending || st.werr != nil || (len(st.out) == 0 && (!st.shut || st.ended)) {
		return
	}
	st.sending = true
	st.sent.Go(st.send)
}

// send sends until nothing is left. It alone writes to the channel.
func (st *stream) send() {
	st.mu.Lock()
	defer st.mu.Unlock()
	var spare []byte
	for st.werr == nil && (len(st.out) > 0 || st.shut && !st.ended) {
		batch := st.out
		st.out = spare[:0]
		end := len(batch) == 0
		st.writable.Broadcast()
		st.mu.Unlock()
		var err error
		if end {
			err = st.ch.CloseWrite()
		} else {
			_, err = st.ch.Write(batch)
		}
		if err != nil {
			err = st.writeError(err)
		}
		st.mu.Lock()
		st.ended = st.ended || end
		if spare = batch; err != nil && st.werr == nil {
			st.werr = err
		}
	}
	st.sending = false
	st.writable.Broadcast()
}

// writeError says what an error of the channel's means.
func (st *stream) writeError(err error) error {
	switch {
	case !errors.Is(err, io.EOF):
		return st.session.lost(err)
	case st.session.wire.alive():
		return syscall.EPIPE // the peer has closed the channel
	default:
		<-st.session.gone // then it is known why
		return st.session.why()
	}
}

// CloseWrite ends our direction once all that was written is sent. It does not
// wait for that.
func (st *stream) CloseWrite() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return st.opError("close", net.ErrClosed)
	}
	st.shut = true
	st.sendLocked()
	st.writable.Broadcast()
	return nil
}

// Close ends both directions. What was written before is still sent, for as long
// as ten seconds.
func (st *stream) Close() error {
	st.finish(false)
	return nil
}

// Abort ends both directions at once and throws away what was not sent. SSH
// cannot say that to the target, which sees an orderly end.
func (st *stream) Abort() error {
	st.finish(true)
	return nil
}

// finish marks st closed, wakes whoever waits in it, and then, beside the
// caller, waits for what is to be sent, closes the channel and gives back what
// the stream held.
func (st *stream) finish(abort bool) {
	st.mu.Lock()
	closed := st.closed
	if !closed {
		st.closed, st.shut, st.in = true, true, nil
		if abort {
			st.out = nil
			st.werr = net.ErrClosed
		}
		st.rdl.setLocked(time.Time{}, &st.readable)
		st.wdl.setLocked(time.Time{}, &st.writable)
		st.sendLocked()
	}
	st.mu.Unlock()
	if closed {
		return
	}
	rest := func() {
		if !abort {
			st.linger()
		}
		_ = st.ch.Close() // fails only if the peer or the session was first
		<-st.fetched
		st.sent.Wait()
		st.session.forget(st)
	}
	if !st.session.spawn(rest) {
		rest() // the session is over: nothing in it waits
	}
}

// linger waits until all has been sent, as long as lingerTime lets it.
func (st *stream) linger() {
	st.mu.Lock()
	defer st.mu.Unlock()
	var end deadline
	end.setLocked(time.Now().Add(lingerTime), &st.writable)
	for st.sending && !st.dead && !end.passed() {
		st.writable.Wait()
	}
	end.setLocked(time.Time{}, &st.writable)
}

// die is the end of the session: no more is sent or fetched. It waits for send,
// which the end of the channel has woken.
func (st *stream) die() {
	why := st.session.why()
	st.mu.Lock()
	if st.dead = true; st.werr == nil {
		st.werr = why
	}
	st.readable.Broadcast()
	st.writable.Broadcast()
	st.mu.Unlock()
	st.sent.Wait()
}

// SetDeadline sets both deadlines.
func (st *stream) SetDeadline(t time.Time) error {
	return errors.Join(st.SetReadDeadline(t), st.SetWriteDeadline(t))
}

// SetReadDeadline bounds pending and later Reads.
func (st *stream) SetReadDeadline(t time.Time) error {
	return st.setDeadline(&st.rdl, &st.readable, t)
}

// SetWriteDeadline bounds pending and later Writes; what they have left in the
// queue is sent all the same.
func (st *stream) SetWriteDeadline(t time.Time) error {
	return st.setDeadline(&st.wdl, &st.writable, t)
}

func (st *stream) setDeadline(d *deadline, wake *sync.Cond, t time.Time) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return st.opError("set", net.ErrClosed)
	}
	d.setLocked(t, wake)
	return nil
}

var (
	_ tunnel.Stream  = (*stream)(nil)
	_ tunnel.Aborter = (*stream)(nil)
)
