// Session: the life cycle that sessions on all libraries share, and why they end.

package carrier

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// forceClose bounds how long Close of a TLS connection may take to write close_notify.
const forceClose = 250 * time.Millisecond

// PeerOf is the peer that the handshake of c has proved, for a transport of that name.
func PeerOf(c *tls.Conn, transport string) tunnel.Peer {
	state := c.ConnectionState()
	return tunnel.Peer{Addr: c.RemoteAddr(), TLS: &state, Transport: transport}
}

// A Session is the life cycle of a session on a library. A tunnel.Session that embeds it has
// to add Open and Accept. All methods may be called concurrently.
type Session struct {
	// Opened holds one for each stream that this end has opened and that has not ended, if
	// the library does not bound them. It is never closed.
	Opened chan struct{}

	peer  tunnel.Peer
	ctx   context.Context // see tunnel.Session
	alive context.Context // done at once when the session ends
	end   context.CancelCauseFunc

	mu    sync.Mutex // guards the following
	ended bool       // work is closed to further additions
	work  sync.WaitGroup
}

// NewSession makes a Session with p, in which this end may open some streams at a time; 0
// means that the library bounds them. It does not depend on the context of the call that dialed.
func NewSession(p tunnel.Peer, streams int) *Session {
	s := &Session{peer: p, Opened: make(chan struct{}, streams)}
	ctx, cancel := context.WithCancelCause(context.Background())
	s.ctx = ctx
	s.alive, s.end = context.WithCancelCause(context.Background())
	context.AfterFunc(s.alive, func() {
		s.mu.Lock()
		s.ended = true
		s.mu.Unlock()
		s.work.Wait()
		cancel(context.Cause(s.alive))
	})
	return s
}

// Context implements tunnel.Session.
func (s *Session) Context() context.Context { return s.ctx }

// Peer implements tunnel.Session.
func (s *Session) Peer() tunnel.Peer { return s.peer }

// Alive is done as soon as the session ends, with the same cause as Context.
func (s *Session) Alive() context.Context { return s.alive }

// End ends the session, unless it has ended already, and does not wait.
func (s *Session) End(why error) { s.end(why) }

// Close implements tunnel.Session.
func (s *Session) Close() error {
	s.end(tunnel.ErrSessionClosed)
	<-s.ctx.Done()
	return nil
}

// Dismiss implements tunnel.Session. The peer does not learn the reason.
func (s *Session) Dismiss(*tunnel.Goodbye) error { return s.Close() }

// Link implements tunnel.Session. Nothing is known of the connection.
func (s *Session) Link() tunnel.LinkState {
	return tunnel.LinkState{Streams: len(s.Opened), MaxStreams: cap(s.Opened)}
}

// Tell implements tunnel.Session. It never calls f.
func (s *Session) Tell(func(tunnel.LinkState)) {}

// Move implements tunnel.Session. It fails.
func (s *Session) Move(context.Context) error {
	return errors.New("move session: it ends with its connection")
}

// Join makes the session's end wait for Leave. It returns false if the session has ended.
func (s *Session) Join() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.work.Add(1)
	}
	return !s.ended
}

// Leave is the opposite of Join.
func (s *Session) Leave() { s.work.Done() }

// Go runs f in a goroutine that the session's end waits for. It returns false if the session
// has ended.
func (s *Session) Go(f func()) bool {
	if !s.Join() {
		return false
	}
	go func() {
		defer s.Leave()
		f()
	}()
	return true
}

// Acquire waits for a place in a semaphore, until ctx is done or the session ends.
func (s *Session) Acquire(ctx context.Context, places chan<- struct{}) error {
	if err := s.over(ctx); err != nil {
		return err
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-s.alive.Done():
	case <-ctx.Done():
	}
	return s.over(ctx)
}

// over is the cause of ctx if that is done, or else that of the session's end; nil if neither
// is.
func (s *Session) over(ctx context.Context) error {
	return cmp.Or(context.Cause(ctx), context.Cause(s.alive))
}

// Await receives from c, until ctx is done or the session ends.
func Await[T any](ctx context.Context, s *Session, c <-chan T) (v T, err error) {
	if err = s.over(ctx); err != nil {
		return v, err
	}
	select {
	case v = <-c:
		return v, nil
	case <-s.alive.Done():
	case <-ctx.Done():
	}
	return v, s.over(ctx)
}

// Open acquires a place in Opened and calls open, which has no context, in a goroutine. It
// waits until ctx is done or the session ends; a stream that comes later is aborted. If open
// fails the place is released; otherwise the stream has to release it.
func Open(ctx context.Context, s *Session, open func() (tunnel.Stream, error)) (tunnel.Stream, error) {
	type result struct {
		stream tunnel.Stream
		err    error
	}
	if err := s.Acquire(ctx, s.Opened); err != nil {
		return nil, err
	}
	opened, gone := make(chan result), make(chan struct{})
	defer close(gone)
	go func() { // it ends with the library's session at the latest
		st, err := open()
		if err != nil {
			<-s.Opened
		}
		select {
		case opened <- result{st, err}:
		case <-gone:
			if err == nil {
				_ = tunnel.Abort(st) // nobody has it
			}
		}
	}()
	r, err := Await(ctx, s, opened)
	return r.stream, cmp.Or(err, r.err)
}

// A Conn is a connection that a library owns and closes. It tells when and why that happened.
type Conn struct {
	net.Conn
	timeout time.Duration // after which the library closes a silent connection, at least
	onClose func()        // called by the first Close
	once    sync.Once
	closed  chan struct{} // closed by Close

	mu       sync.Mutex    // guards the following
	readErr  error         // the last error of Read
	lastRead time.Time     // when Read last returned data
	silence  time.Duration // the time from lastRead to Close
}

// NewConn wraps c, which it owns, for a library that closes a connection after patience, or
// longer, of silence. onClose is called once, by Close.
func NewConn(c net.Conn, patience time.Duration, onClose func()) *Conn {
	return &Conn{Conn: c, timeout: patience, onClose: onClose, closed: make(chan struct{}), lastRead: time.Now()}
}

// Closed is closed when c has been closed.
func (c *Conn) Closed() <-chan struct{} { return c.closed }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 {
		c.lastRead = time.Now()
	}
	if err != nil {
		c.readErr = err
	}
	return n, err
}

// Close implements net.Conn. It takes no longer than forceClose.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.mu.Lock()
		c.silence = time.Since(c.lastRead)
		c.mu.Unlock()
		if tcp := tcpBelow(c.Conn); tcp != nil {
			force := time.AfterFunc(forceClose, func() { _ = tcp.Close() })
			defer force.Stop()
		}
		_ = c.Conn.Close() // it is closed either way
		c.onClose()
		close(c.closed)
	})
	return nil
}

// NetConn is the connection itself.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// ReadError is why Read failed, such as an alert of TLS; nil if it did not, or c was closed at
// either end.
func (c *Conn) ReadError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.readErr, io.EOF) || errors.Is(c.readErr, net.ErrClosed) {
		return nil
	}
	return c.readErr
}

// Cause is why c was closed. It is never io.EOF, which would look like the end of a stream.
func (c *Conn) Cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.readErr != nil && errors.Is(c.readErr, io.EOF):
		return fmt.Errorf("%w: peer closed the connection", tunnel.Lost)
	case c.readErr != nil && !errors.Is(c.readErr, net.ErrClosed):
		return fmt.Errorf("%w: %w", tunnel.Lost, c.readErr)
	case c.silence >= c.timeout:
		return fmt.Errorf("%w: nothing heard for %v", tunnel.Dead, c.silence.Round(time.Millisecond))
	default:
		return fmt.Errorf("%w: peer has broken the protocol, or answers no pings", tunnel.Lost)
	}
}
