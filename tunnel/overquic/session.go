// Session: a QUIC connection as tunnel wants it.

package overquic

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
)

// A session is a tunnel.Resumer, and a tunnel.Dismisser.
type session struct {
	conn    *quic.Conn
	peer    tunnel.Peer
	sockets *sockets // at the dialing end, and owned; nil at the other
	ctx     context.Context

	mu    sync.Mutex // guards the following
	cause error      // why this end ended the session; nil if it did not
	heard time.Time  // when packets was last seen to grow
	count uint64     // of packets received
}

// newSession makes a session of c and owns both it and p, which is nil at the accepting
// end; vacant is nil at the other. The session ends by Close or by its connection, not
// with whoever dialed.
func newSession(c *quic.Conn, p *sockets, vacant func(local, remote net.Addr) bool) *session {
	state := c.ConnectionState().TLS
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &session{
		conn: c, sockets: p, ctx: ctx, heard: time.Now(),
		peer: tunnel.Peer{Addr: c.RemoteAddr(), TLS: &state, Transport: Name},
	}
	context.AfterFunc(c.Context(), func() { // Close waits for it
		if p != nil {
			p.close()
		}
		err := lost(context.Cause(c.Context()))
		s.mu.Lock()
		if s.cause != nil {
			err = s.cause
		}
		s.mu.Unlock()
		// The system of a peer that fell silent is asked; all of the session wait for that.
		if vacant != nil && errors.Is(err, tunnel.Dead) && vacant(s.localAddr(), s.remoteAddr()) {
			err = &gone{code: tunnel.Lost, text: "nobody has the peer's port any more, its system says"}
		}
		cancel(err)
	})
	return s
}

func (s *session) Context() context.Context { return s.ctx }
func (s *session) Peer() tunnel.Peer        { return s.peer }

// localAddr and remoteAddr are the ends of the path. The dialing end must not ask its
// connection, which changes them without a lock.
func (s *session) localAddr() net.Addr {
	if s.sockets != nil {
		return s.sockets.local()
	}
	return s.conn.LocalAddr()
}

func (s *session) remoteAddr() net.Addr {
	if s.sockets != nil {
		return s.peer.Addr
	}
	return s.conn.RemoteAddr()
}

// why is the reason for the session's end. The connection has ended, or is about to.
func (s *session) why() error {
	<-s.ctx.Done()
	return context.Cause(s.ctx)
}

func (s *session) Close() error {
	return s.end(codeClosed, tunnel.ErrSessionClosed.Error())
}

// Dismiss implements tunnel.Dismisser.
func (s *session) Dismiss(why *tunnel.Goodbye) error {
	return s.end(codeGoodbye+quic.ApplicationErrorCode(why.ErrorCode()), why.Text)
}

// end closes the connection, unless it is closed, and tells the peer why.
func (s *session) end(code quic.ApplicationErrorCode, text string) error {
	s.mu.Lock()
	if s.cause == nil && s.conn.Context().Err() == nil {
		s.cause = tunnel.ErrSessionClosed
	}
	s.mu.Unlock()
	_ = s.conn.CloseWithError(code, clip(text)) // never fails
	<-s.ctx.Done()
	return nil
}

// Open implements tunnel.Session. It waits while the peer allows no more streams.
func (s *session) Open(ctx context.Context) (tunnel.Stream, error) {
	q, err := s.conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, s.failed(ctx)
	}
	return newStream(s, q), nil
}

// Accept implements tunnel.Session.
func (s *session) Accept(ctx context.Context) (tunnel.Stream, error) {
	q, err := s.conn.AcceptStream(ctx)
	if err != nil {
		return nil, s.failed(ctx)
	}
	return newStream(s, q), nil
}

// failed says why opening or accepting a stream did.
func (s *session) failed(ctx context.Context) error {
	if s.conn.Context().Err() == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.why()
}

// Link implements tunnel.Resumer. The library does not say when a packet came: Heard is
// when somebody asked for it and more had come than before. Bytes count as sent again
// when the packet they were in is taken for lost.
func (s *session) Link() tunnel.LinkState {
	stats := s.conn.ConnectionStats()
	s.mu.Lock()
	if stats.PacketsReceived > s.count {
		s.count, s.heard = stats.PacketsReceived, time.Now()
	}
	heard := s.heard
	s.mu.Unlock()
	return tunnel.LinkState{
		Heard: heard, Addr: s.remoteAddr(), RTT: stats.LatestRTT,
		Replayed: stats.BytesLost, Sent: stats.BytesSent - min(stats.BytesLost, stats.BytesSent), Received: stats.BytesReceived,
	}
}

var (
	_ tunnel.Resumer   = (*session)(nil)
	_ tunnel.Dismisser = (*session)(nil)
)
