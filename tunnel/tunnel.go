// The interfaces: what a stream, a session, a listener and a network are.

package tunnel

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
)

// ALPN is the application protocol by which a listener tells a tunnel from
// other TLS traffic on the same port (RFC 7301).
const ALPN = "hawser/1"

// DefaultMaxStreams is how many streams each end of a session may have open at
// a time when Options say nothing.
const DefaultMaxStreams = 1024

// ErrSessionClosed is wrapped by errors about a session that its own end
// closed. It is a net.ErrClosed.
var ErrSessionClosed = fmt.Errorf("session closed: %w", net.ErrClosed)

// A Stream is one proxied connection. Deadlines work. Close ends both
// directions; CloseWrite ends ours and leaves reading open until the peer ends
// its own. *net.TCPConn, *net.UnixConn and *tls.Conn are Streams.
//
// Read returns io.EOF only if the peer ended its direction. When the session
// dies under a stream, Read returns an error that is not io.EOF, so that a cut
// transfer never looks like a complete one.
type Stream interface {
	net.Conn
	CloseWrite() error
}

// An Aborter is a Stream that can be given up: both directions end at once and
// the peer sees a reset, not an orderly end.
type Aborter interface {
	Abort() error
}

// Abort gives s up. The peer sees a reset where the stream can say so and an
// orderly end where it cannot, as on a unix socket. A TLS peer sees no close_notify
// (RFC 8446, 6.1), which would call what was cut complete.
func Abort(s net.Conn) error {
	switch c := s.(type) {
	case Aborter:
		return c.Abort()
	case *tls.Conn:
		return Abort(c.NetConn())
	case interface{ SetLinger(int) error }: // *net.TCPConn: RST instead of FIN
		// If this fails the connection is closed or broken already, and Close
		// below is all that is left to do.
		_ = c.SetLinger(0)
	}
	return s.Close()
}

// CloseWrite ends our direction of s, or all of s if it cannot half-close.
func CloseWrite(s net.Conn) error {
	if cw, ok := s.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return s.Close()
}

// A Session is one authenticated rope between a server and an agent. Both ends
// may open streams. All methods may be called at the same time.
type Session interface {
	// Context is done once the session is dead and its goroutines have
	// returned; context.Cause says why.
	Context() context.Context
	// Peer is what the transport proved about the far side.
	Peer() Peer
	// Open opens a stream. ctx bounds the opening, not the stream's life. It
	// blocks while the peer's backlog is full. Failing to open one stream
	// never ends the session. The caller owns the stream.
	Open(ctx context.Context) (Stream, error)
	// Accept waits for a stream that the peer opened. The caller owns it.
	Accept(ctx context.Context) (Stream, error)
	// Close ends every stream, then waits as Context does. Calling it again is
	// harmless.
	Close() error
}

// A Peer is what the transport itself proved about the far side of a session.
type Peer struct {
	// Addr is where the peer's packets come from.
	Addr net.Addr
	// TLS is the state of the finished handshake; nil where there was none.
	TLS *tls.ConnectionState
	// Transport is the Transport's Name; empty in memory.
	Transport string
}

// A Listener yields sessions whose handshake is finished.
type Listener interface {
	// Serve accepts until ctx is done and calls f for each session, in a
	// goroutine of the session's own, so that a slow handshake or a long f
	// holds up nobody else. It returns once every f has: f must watch its own
	// ctx, which is done when Serve's is. When f returns, Serve closes the
	// session. Serve closes the underlying listener when it stops.
	Serve(ctx context.Context, f func(context.Context, Session)) error
	// Addr is where the listener listens.
	Addr() net.Addr
}

// A Transport is one way to make sessions. Package cmd keeps the table of them;
// there is no registry.
type Transport struct {
	// Name is what --transport calls it.
	Name string
	// Can says what its sessions can do beyond what every Session promises.
	Can Capabilities
	// Dial makes the dialing end of a session with the server at addr.
	Dial func(ctx context.Context, addr string, o Options) (Session, error)
	// Listen makes sessions of the connections that ln accepts. It owns ln.
	Listen func(ln net.Listener, o Options) (Listener, error)
}

// Capabilities are what sessions of a transport can do, and those of another cannot.
type Capabilities struct {
	// Resume: streams outlive the connection that carries them; see Resumer.
	Resume bool
	// Migrate: Move takes a session to another path, and no stream is lost.
	Migrate bool
	// HalfClose: CloseWrite ends one direction of a stream and leaves the other.
	HalfClose bool
	// Reset: the peer of a stream that is aborted, or whose reader is gone, learns just
	// that. Without it an aborted stream may look as if it had come to its end.
	Reset bool
}

// Options are what every transport understands. Zero fields mean a good
// default.
type Options struct {
	// TLS is required, except in memory. A transport sets ALPN on a copy.
	TLS *tls.Config
	// Dial makes the connection below TLS; nil means a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// MaxStreams bounds how many streams each end may have open at a time;
	// zero means DefaultMaxStreams. More wait in Open.
	MaxStreams int
	// Link is about the connection below the session.
	Link LinkOptions
	// Intake bounds what has been received and not been read, over all sessions
	// that share it; nil means ProcessIntake. SSH has a bound of its own, for each
	// session.
	Intake *Intake
	// Log is told of handshakes that failed; nil means discard.
	Log *slog.Logger
}

// Shared is Intake with its default applied.
func (o Options) Shared() *Intake {
	if o.Intake == nil {
		return ProcessIntake()
	}
	return o.Intake
}

// Streams is MaxStreams with its default applied.
func (o Options) Streams() int {
	if o.MaxStreams <= 0 {
		return DefaultMaxStreams
	}
	return o.MaxStreams
}

// A Network makes connections. The real one is package net; memnet has one for
// tests.
type Network interface {
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
	Listen(ctx context.Context, network, addr string) (net.Listener, error)
}

var (
	_ Stream = (*net.TCPConn)(nil)
	_ Stream = (*net.UnixConn)(nil)
	_ Stream = (*tls.Conn)(nil)
)
