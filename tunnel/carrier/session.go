// Session: what sessions on a library have in common: their life, and why it ended.

package carrier

import (
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

// forceClose is how long a connection that is being closed may take to say so to a peer
// that takes nothing.
const forceClose = 250 * time.Millisecond

// PeerOf is what the handshake of c has proved, for a transport of that name.
func PeerOf(c *tls.Conn, transport string) tunnel.Peer {
	state := c.ConnectionState()
	return tunnel.Peer{Addr: c.RemoteAddr(), TLS: &state, Transport: transport}
}

// A Session is the life of a session on a library. A tunnel.Session that embeds it
// needs Open and Accept; it may have more of its own, if its library tells more. All methods may be called at the same time.
type Session struct {
	peer  tunnel.Peer
	ctx   context.Context // see tunnel.Session
	alive context.Context // done at once when the session ends
	end   context.CancelCauseFunc

	mu   sync.Mutex // guards the following
	over bool       // nothing is added to work any more
	work sync.WaitGroup
}

// NewSession makes the life of a session with p. The session is a root of its own: it
// does not end with whoever happened to dial.
func NewSession(p tunnel.Peer) *Session {
	s := &Session{peer: p}
	ctx, cancel := context.WithCancelCause(context.Background())
	s.ctx = ctx
	s.alive, s.end = context.WithCancelCause(context.Background())
	context.AfterFunc(s.alive, func() {
		s.mu.Lock()
		s.over = true
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

// Alive is done at once when the session ends, for the same cause as Context.
func (s *Session) Alive() context.Context { return s.alive }

// End ends the session, if it has not ended for another reason, and does not wait.
func (s *Session) End(why error) { s.end(why) }

// Close implements tunnel.Session.
func (s *Session) Close() error {
	s.end(tunnel.ErrSessionClosed)
	<-s.ctx.Done()
	return nil
}

// Dismiss implements tunnel.Session. The peer is not told why.
func (s *Session) Dismiss(*tunnel.Goodbye) error { return s.Close() }

// Link implements tunnel.Session. Libraries tell nothing of their connections.
func (s *Session) Link() tunnel.LinkState { return tunnel.LinkState{} }

// Tell implements tunnel.Session. There is nothing to tell.
func (s *Session) Tell(func(tunnel.LinkState)) {}

// Move implements tunnel.Session. It fails.
func (s *Session) Move(context.Context) error {
	return errors.New("move session: it ends with its connection")
}

// Join has the session's end wait for Leave, unless it has come: then it returns false.
func (s *Session) Join() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.work.Add(1)
	}
	return !s.over
}

// Leave is the opposite of Join.
func (s *Session) Leave() { s.work.Done() }

// Go runs f in a goroutine that the session's end waits for, unless it has come: then it
// returns false.
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

// Enter waits for a place, until ctx is done or the session ends.
func (s *Session) Enter(ctx context.Context, places chan<- struct{}) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.alive.Err() != nil {
		return context.Cause(s.alive)
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-s.alive.Done():
		return context.Cause(s.alive)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Open takes a place and calls open, which knows no context, beside the caller: until ctx is
// done or the session ends. What open comes to after that is given to unwanted. The place is
// given back if open fails; else that is for the stream to do.
func Open[S any](ctx context.Context, s *Session, places chan struct{}, open func() (S, error), unwanted func(S)) (S, error) {
	type result struct {
		stream S
		err    error
	}
	var none S
	if err := s.Enter(ctx, places); err != nil {
		return none, err
	}
	opened, gone := make(chan result), make(chan struct{})
	defer close(gone)
	go func() { // ends with the library's session, and nobody needs to wait for that
		st, err := open()
		if err != nil {
			<-places
		}
		select {
		case opened <- result{st, err}:
		case <-gone:
			if err == nil {
				unwanted(st)
			}
		}
	}()
	select {
	case r := <-opened:
		return r.stream, r.err
	case <-s.alive.Done():
		return none, context.Cause(s.alive)
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// A Conn is the connection of a library that closes it by itself. It tells when, and why.
type Conn struct {
	net.Conn
	patience time.Duration // how long the library bears silence, at least
	once     sync.Once
	gone     chan struct{} // closed by Close

	mu     sync.Mutex    // guards the following
	failed error         // what Read said
	heard  time.Time     // when something last came
	quiet  time.Duration // how long before Close that was
}

// NewConn wraps c, which it owns, for a library that closes a connection when it has heard
// nothing for patience, or longer.
func NewConn(c net.Conn, patience time.Duration) *Conn {
	return &Conn{Conn: c, patience: patience, gone: make(chan struct{}), heard: time.Now()}
}

// Gone is closed when c has been.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 {
		c.heard = time.Now()
	}
	if err != nil {
		c.failed = err
	}
	return n, err
}

// Close implements net.Conn. It does not wait for a peer that takes nothing.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.mu.Lock()
		c.quiet = time.Since(c.heard)
		c.mu.Unlock()
		if tcp := TCPBelow(c.Conn); tcp != nil {
			force := time.AfterFunc(forceClose, func() { _ = tcp.Close() })
			defer force.Stop()
		}
		_ = c.Conn.Close() // nobody could do anything about it
		close(c.gone)
	})
	return nil
}

// NetConn is the connection itself.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Why is what became of a connection that is gone. It is never io.EOF, which would look
// like the end of a stream.
func (c *Conn) Why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failed != nil && errors.Is(c.failed, io.EOF):
		return fmt.Errorf("%w: peer closed the connection", tunnel.Lost)
	case c.failed != nil && !errors.Is(c.failed, net.ErrClosed):
		return fmt.Errorf("%w: %w", tunnel.Lost, c.failed)
	case c.quiet >= c.patience:
		return fmt.Errorf("%w: nothing heard for %v", tunnel.Dead, c.quiet.Round(time.Millisecond))
	default:
		return fmt.Errorf("%w: peer has broken the protocol, or answers no pings", tunnel.Lost)
	}
}
