// The interfaces: Stream, Session, Listener and Transport, and the options and the state of a
// session.

package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultMaxStreams is the default of Options.MaxStreams.
const DefaultMaxStreams = 1024

// ErrSessionClosed is wrapped by errors about a session that this end has closed. It wraps
// net.ErrClosed.
var ErrSessionClosed = fmt.Errorf("session closed: %w", net.ErrClosed)

// A Stream is one proxied connection. Close ends both directions; CloseWrite ends ours, and
// the other can be read until the peer ends it. *net.TCPConn, *net.UnixConn and *tls.Conn are
// Streams.
//
// Read returns io.EOF only if the peer has ended its direction. If the session ends first it
// returns another error, so that a transfer that was cut never looks complete.
type Stream interface {
	net.Conn
	CloseWrite() error
}

// An Aborter is a Stream that can be aborted: both directions end at once, and the peer sees
// a reset, not an orderly end.
type Aborter interface {
	Abort() error
}

// Abort aborts s. The peer sees a reset if the stream has one, and an orderly end if it has
// none, such as a unix socket. A TLS peer sees no close_notify (RFC 8446, 6.1), which would
// make what was cut look complete.
func Abort(s net.Conn) error {
	switch c := s.(type) {
	case Aborter:
		return c.Abort()
	case *tls.Conn:
		return Abort(c.NetConn())
	case interface{ SetLinger(int) error }: // *net.TCPConn: RST instead of FIN
		// If this fails the connection is closed or broken already.
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

// A Session is one authenticated session between a server and an agent. Both ends may open
// streams. All methods may be called concurrently.
type Session interface {
	// Context is done once the session has ended and its goroutines have returned;
	// context.Cause says why.
	Context() context.Context
	// Peer is what the transport has proved about the peer.
	Peer() Peer
	// Open opens a stream. ctx bounds the opening, not the stream's life. Open waits while
	// the peer's backlog is full. If it fails the session goes on. The caller owns the stream.
	Open(ctx context.Context) (Stream, error)
	// Accept waits for a stream that the peer opens. The caller owns it.
	Accept(ctx context.Context) (Stream, error)
	// Close ends every stream and the session, and returns once Context is done. It may be
	// called again.
	Close() error
	// Dismiss is Close with a reason. If the transport can send it with the end of the
	// connection, the peer's error wraps a *Goodbye like why with the beginning of its text,
	// even if data written before was lost. A Control sends the reason on any transport, if
	// the control stream can be written.
	Dismiss(why *Goodbye) error

	// Link is the state of the connection below; fields are zero where it is unknown.
	Link() LinkState
	// Tell makes f be called, with the new state, whenever the session is parked or resumed.
	// If it is parked now, f is called before Tell returns. A connection that is replaced
	// without a gap is no change, and neither is the session's end. Calls are made one after
	// the other, in order. f replaces the function of an earlier call; it must return at once
	// and not call the session.
	Tell(f func(LinkState))
	// Move replaces the connection, because the old one may be about to break: the machine
	// has another address, or was suspended. The old connection is used until the new one
	// works. Move fails at the accepting end, without Capabilities.Migrate, and if there is
	// no new connection before ctx is done; then the session goes on as before.
	Move(ctx context.Context) error
}

// A Peer is what the transport has proved about the peer of a session.
type Peer struct {
	// Addr is the source address of the peer's packets.
	Addr net.Addr
	// TLS is the state of the handshake; nil where there was none.
	TLS *tls.ConnectionState
	// Transport is the Transport's Name; empty in memory.
	Transport string
}

// A Listener accepts sessions.
type Listener interface {
	// Serve accepts sessions until ctx is done, and calls f for each in a goroutine of its
	// own. When f returns Serve closes the session. Serve returns once every f has returned:
	// f must watch its ctx, which is done when Serve's is. Serve closes the underlying
	// listener when it stops.
	Serve(ctx context.Context, f func(context.Context, Session)) error
	// Addr is the address that the listener listens on.
	Addr() net.Addr
	// Transport is the Name of the transport of its sessions.
	Transport() string
	// Handshakes counts the handshakes of its clients.
	Handshakes() Handshakes
}

// A Transport makes sessions. Package cmd has the table of them; there is no registry.
type Transport struct {
	// Name is the value of --transport.
	Name string
	// Can is the capabilities of its sessions.
	Can Capabilities
	// Dial makes the dialing end of a session with the server at addr.
	Dial func(ctx context.Context, addr string, o Options) (Session, error)
	// Listen makes sessions of the connections that ln accepts. It owns ln.
	Listen func(ln net.Listener, o Options) (Listener, error)
}

// Capabilities are what the sessions of some transports can do and those of others cannot.
type Capabilities struct {
	// Resume: streams outlive the connection that carries them; see LinkState.Window.
	Resume bool
	// Migrate: Session.Move works, and no stream is lost.
	Migrate bool
	// HalfClose: CloseWrite ends one direction of a stream and leaves the other.
	HalfClose bool
	// Reset: the peer of a stream that is aborted, or that is not read any more, learns
	// that. Without it an aborted stream may look complete.
	Reset bool
}

// Options are the options of all transports. Zero fields mean the default.
type Options struct {
	// TLS is required, except in memory. A transport sets ALPN on a copy.
	TLS *tls.Config
	// Roots are the authorities of servers, asked for each connection in place of TLS.RootCAs: a
	// session may outlive an authority. Nil means TLS.RootCAs.
	Roots func() *x509.CertPool
	// Dial makes the connection below TLS; nil means that of a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// DialSmall is Dial for paths on which large packets are lost: neither end of the
	// connection sends packets above 1280 bytes. Nil means Dial if that is not nil.
	DialSmall func(ctx context.Context, network, addr string) (net.Conn, error)
	// MaxStreams bounds the streams that each end may have open; zero means
	// DefaultMaxStreams. Open waits for more; qmux's fails with Busy after two seconds.
	MaxStreams int
	// Link has the options of the connection below the session.
	Link LinkOptions
	// Intake bounds the unread data of all sessions that share it; nil means
	// ProcessIntake. SSH has a bound for each session instead.
	Intake *Intake
	// Log is where failed handshakes are logged; nil means nowhere.
	Log *slog.Logger
}

// Shared is Intake with its default applied.
func (o Options) Shared() *Intake { return cmp.Or(o.Intake, ProcessIntake()) }

// Logger is Log with its default applied.
func (o Options) Logger() *slog.Logger { return cmp.Or(o.Log, slog.New(slog.DiscardHandler)) }

// Streams is MaxStreams with its default applied.
func (o Options) Streams() int { return cmp.Or(max(o.MaxStreams, 0), DefaultMaxStreams) }

// Defaults of LinkOptions.
const (
	// DefaultDetachWindow is the default of LinkOptions.DetachWindow.
	DefaultDetachWindow = 60 * time.Second
	// DefaultKeepalive is the default of LinkOptions.Keepalive. A dead peer is detected
	// within 20 seconds. Qmux gives a peer whose TCP acknowledges 42.
	DefaultKeepalive = 14 * time.Second
	// DefaultConnections is the default of LinkOptions.Connections, MaxConnections its
	// maximum.
	DefaultConnections = 16
	MaxConnections     = 64
)

// LinkOptions are options of the connections below a session. Zero fields mean the default.
type LinkOptions struct {
	// DetachWindow is how long a session without a connection stays parked before it ends;
	// zero means DefaultDetachWindow, and negative that it ends with its connection. The
	// shorter one of both ends' is used.
	DetachWindow time.Duration
	// Keepalive is how long a connection may be silent before the peer is pinged; zero
	// means DefaultKeepalive. The longer one of both ends' is used.
	Keepalive time.Duration
	// Metered lets the keepalive interval grow as long as the connection survives it. A dead
	// peer is detected later, and an idle day costs less than 40 KiB.
	Metered bool
	// Connections bounds the connections of a session, which separate bulk from small data;
	// zero means DefaultConnections. Only qmux has more than one.
	Connections int
	// Congestion is the congestion control of TCP connections. Empty and "auto" mean bbr if
	// the kernel allows it to this process, "system" the system's default.
	Congestion string
	// Resume is called at the accepting end before a session is resumed on another
	// connection of this peer. An error refuses. If it wraps Busy the session stays parked,
	// and the dialing end tries again. After any other error the session ends at both ends;
	// the dialing end's error wraps a *Goodbye with the error's Code and text, or with Denied
	// if it has no Code. Resume must not block. Nil allows every peer with a valid
	// certificate. QUIC, which has one connection, never calls it.
	Resume func(Peer) error
	// Server names the accepting end, with 255 bytes at most. It stays the same if that
	// restarts. By it the dialing end of qmux tells a server that has forgotten the session
	// from another one behind the same load balancer. QUIC answers packets of lost
	// connections in its name. Empty means that all are taken for one.
	Server string
}

// Window is DetachWindow with its default applied.
func (o LinkOptions) Window() time.Duration { return cmp.Or(o.DetachWindow, DefaultDetachWindow) }

// Interval is Keepalive with its default applied.
func (o LinkOptions) Interval() time.Duration { return cmp.Or(max(o.Keepalive, 0), DefaultKeepalive) }

// A LinkState is the state of the connections below a session. Counts are since the session
// began.
type LinkState struct {
	// Parked is since when there has been no connection; zero while there is one.
	Parked time.Time
	// Cause is why there is none; nil while there is one. It wraps Dead if the peer fell
	// silent, and otherwise the system's error.
	Cause error
	// Elsewhere says that an attempt to resume has reached another server since Parked, such
	// as one behind the same load balancer.
	Elsewhere bool
	// Heard is when data was last received from the peer.
	Heard time.Time
	// Window is how long the session may stay parked; zero if it ends with its
	// connection.
	Window time.Duration
	// Addr is the present source address of the peer's packets.
	Addr net.Addr
	// RTT is the latest round trip; zero before the first.
	RTT time.Duration
	// Parks counts how often the last connection was lost, Resumes how often another took the
	// place of one.
	Parks, Resumes uint64
	// Replayed counts retransmitted bytes; Sent and Received count bytes without
	// retransmissions.
	Replayed, Sent, Received uint64
	// Queued is how many bytes are unsent or unacknowledged.
	Queued int
	// Connections is the present number of connections; zero if it is unknown.
	Connections int
	// Streams is how many streams this end has opened that have not ended, MaxStreams how many
	// it may have; both are zero if the transport does not report them.
	Streams, MaxStreams int
}

// goodbyeIn is the *Goodbye that err wraps, or err if it wraps none.
func goodbyeIn(err error) error {
	if bye, ok := errors.AsType[*Goodbye](err); ok {
		return bye
	}
	return err
}

// DefaultIntake is the limit of ProcessIntake, in bytes, if GOMEMLIMIT is not set. If it is,
// the limit is a quarter of that.
const DefaultIntake = 1 << 30

// An Intake bounds the unread bytes of the sessions that share it, by the flow control
// windows that it grants. It does not end sessions. A transport whose windows cannot be
// narrowed may end one that is granted no more: see package overyamux.
//
// Each stream has a small window without a grant: see package qmux. Larger windows are
// granted. New streams are granted up to a quarter of the limit together, and windows that
// grow up to half of it. The other half is for the small windows. While more than half of the
// limit is unread nothing is granted, and streams that are read return their windows up to a
// minimum.
//
// All methods may be called concurrently.
type Intake struct {
	limit   int64
	granted atomic.Int64
	unread  atomic.Int64
}

// NewIntake makes an Intake with a limit in bytes; zero means the default.
func NewIntake(limit int64) *Intake {
	return &Intake{limit: cmp.Or(max(limit, 0), intakeLimit(debug.SetMemoryLimit(-1)))}
}

// intakeLimit is the default for a memory limit; math.MaxInt64 means none.
func intakeLimit(memory int64) int64 {
	if memory == math.MaxInt64 {
		return DefaultIntake
	}
	return max(memory/4, 1)
}

// ProcessIntake is the Intake of sessions that are given no other. It is made at its first
// use.
var ProcessIntake = sync.OnceValue(func() *Intake { return NewIntake(0) })

// Limit is the bound on unread bytes. Package qmux says what each stream may have beyond it.
func (i *Intake) Limit() int64 { return i.limit }

// Unread is the number of unread bytes.
func (i *Intake) Unread() int64 { return i.unread.Load() }

// Granted is the number of bytes granted to windows and not returned.
func (i *Intake) Granted() int64 { return i.granted.Load() }

// Scarce says whether windows are to be narrowed.
func (i *Intake) Scarce() bool { return i.unread.Load() > i.limit/2 }

// Begin grants n bytes to the window of a new stream, or nothing.
func (i *Intake) Begin(n int) bool { return i.grant(int64(n), i.limit/4) }

// Share grants up to most bytes to the window of a new session, if its transport has one
// window for all streams: an eighth of what is left for new ones, so that later sessions get
// some as well. It grants nothing rather than less than least.
func (i *Intake) Share(least, most int) int {
	n := int(min((i.limit/4-i.Granted())/8, int64(most)))
	if n < least || !i.Begin(n) {
		return 0
	}
	return n
}

// Grow grants n bytes to a window that limits the throughput, or nothing.
func (i *Intake) Grow(n int) bool { return i.grant(int64(n), i.limit/2) }

func (i *Intake) grant(n, limit int64) bool {
	if i.Scarce() {
		return false
	}
	if i.granted.Add(n) > limit {
		i.granted.Add(-n)
		return false
	}
	return true
}

// Widen is Grow for one of many windows that are kept while they are idle: it grants no more than
// an eighth of what is left, so that others can grow as well.
func (i *Intake) Widen(n int) bool { return int64(n) <= (i.limit/2-i.Granted())/8 && i.Grow(n) }

// Return returns n granted bytes.
func (i *Intake) Return(n int) { i.granted.Add(-int64(n)) }

// AddUnread adds n to the number of unread bytes; n is negative for bytes that were read or
// discarded.
func (i *Intake) AddUnread(n int) { i.unread.Add(int64(n)) }

// Handshakes are the handshakes of a listener. All fields but Underway only grow.
type Handshakes struct {
	// Done counts those that have succeeded, Failed those that have not: the client had no
	// valid certificate, or was too slow.
	Done, Failed uint64
	// NoSession counts those of Done that led to no session and joined none: the client's
	// first frames violated the protocol or did not come, or it was refused.
	NoSession uint64
	// Refused counts clients that were refused because there were too many.
	Refused uint64
	// Underway is the number of handshakes in progress.
	Underway int
}
