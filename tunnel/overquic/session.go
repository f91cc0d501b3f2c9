// Session: a QUIC connection as a tunnel.Session.

package overquic

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

// A session is a tunnel.Session with Dismiss and Move, without resumption.
type session struct {
	*carrier.Session
	conn    *quic.Conn
	sockets *sockets // at the dialing end, and owned; nil at the other

	mu           sync.Mutex // guards the following
	lastReceived time.Time  // when count was last seen to grow
	count        uint64     // of packets received
}

// newSession makes a session of c and p, and owns both. p is nil at the accepting end. This end may
// open some streams at a time.
func newSession(c *quic.Conn, p *sockets, streams int) *session {
	state := c.ConnectionState().TLS
	s := &session{
		Session: carrier.NewSession(tunnel.Peer{Addr: c.RemoteAddr(), TLS: &state, Transport: Name}, streams),
		conn:    c, sockets: p, lastReceived: time.Now(),
	}
	s.Join() // it cannot have ended yet
	context.AfterFunc(c.Context(), func() {
		s.End(sessionError(context.Cause(c.Context())))
		if p != nil {
			p.close()
		}
		s.Leave()
	})
	context.AfterFunc(s.Alive(), func() { _ = c.CloseWithError(codeClosed, tunnel.ErrSessionClosed.Error()) }) // never fails
	return s
}

// localAddr and remoteAddr are the addresses of the path. The library changes those of the
// dialing end's connection without a lock, so they are not read there.
func (s *session) localAddr() net.Addr {
	if s.sockets != nil {
		return s.sockets.local()
	}
	return s.conn.LocalAddr()
}

func (s *session) remoteAddr() net.Addr {
	if s.sockets != nil {
		return s.Peer().Addr
	}
	return s.conn.RemoteAddr()
}

// cause waits for the session's end and returns its cause.
func (s *session) cause() error {
	<-s.Context().Done()
	return context.Cause(s.Context())
}

// Dismiss implements tunnel.Session.
func (s *session) Dismiss(why *tunnel.Goodbye) error {
	_ = s.conn.CloseWithError(codeGoodbye+quic.ApplicationErrorCode(why.ErrorCode()), clip(why.Text)) // never fails
	return s.Close()
}

// Open implements tunnel.Session. It waits while as many streams are open as may be, here or at
// the peer.
func (s *session) Open(ctx context.Context) (tunnel.Stream, error) {
	if err := s.Acquire(ctx, s.Opened); err != nil {
		return nil, err
	}
	q, err := s.conn.OpenStreamSync(ctx)
	if err != nil {
		<-s.Opened
		return nil, s.failed(ctx)
	}
	return &stream{session: s, quic: q, opened: true}, nil
}

// Accept implements tunnel.Session.
func (s *session) Accept(ctx context.Context) (tunnel.Stream, error) {
	q, err := s.conn.AcceptStream(ctx)
	if err != nil {
		return nil, s.failed(ctx)
	}
	return &stream{session: s, quic: q}, nil
}

// failed is why opening or accepting a stream failed.
func (s *session) failed(ctx context.Context) error {
	if s.conn.Context().Err() == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.cause()
}

// Link implements tunnel.Session. The library does not say when a packet was received: Heard
// is when Link was last called after more packets had been received. Replayed counts the
// bytes of packets that are considered lost.
func (s *session) Link() tunnel.LinkState {
	stats := s.conn.ConnectionStats()
	s.mu.Lock()
	if stats.PacketsReceived > s.count {
		s.count, s.lastReceived = stats.PacketsReceived, time.Now()
	}
	heard := s.lastReceived
	s.mu.Unlock()
	l := s.Session.Link()
	return tunnel.LinkState{
		Streams: l.Streams, MaxStreams: l.MaxStreams, Heard: heard, Addr: s.remoteAddr(), RTT: stats.LatestRTT,
		Replayed: stats.BytesLost, Sent: stats.BytesSent - min(stats.BytesLost, stats.BytesSent), Received: stats.BytesReceived,
	}
}
