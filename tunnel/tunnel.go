// The interfaces: what a stream, a session, a listener and a network are, and what a
// session says of the connections below it.

package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
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
	// Dismiss is Close with a reason. If the end of the connection can carry it, the error
	// for which the session is over at the peer wraps a *Goodbye like why, with the
	// beginning of its text, even if nothing that was written before has arrived. A
	// Control tells it on any session, if it can be written to.
	Dismiss(why *Goodbye) error

	// Link is how the connection below fares; zero as far as that is not known.
	Link() LinkState
	// Tell has f called from now on, with the state after the change, whenever the
	// session loses its connection and whenever it has one again; its end is for
	// Context to tell. If it has none already, f is called before Tell returns. A
	// connection that gives way to the next without a gap is no change. Calls come
	// one after the other, in the order of the changes. f takes the place of any
	// before it; it must return at once and not call the session.
	Tell(f func(LinkState))
	// Move puts the session on a new connection, made by the end that dialed,
	// because the old one may not last: the machine has another address, or
	// woke up. The old connection carries on until the new one does. It fails
	// on the accepting end, without Capabilities.Migrate, and if no connection comes
	// about before ctx is done; the session is none the worse for it.
	Move(ctx context.Context) error
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
	// Transport is the name of the transport whose sessions it yields.
	Transport() string
	// Handshakes counts those of its clients.
	Handshakes() Handshakes
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
	// Resume: streams outlive the connection that carries them; see LinkState.Window.
	Resume bool
	// Migrate: Session.Move takes a session to another path, and no stream is lost.
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
	// DialSmall is Dial for paths on which large packets vanish: neither end of the
	// connection sends one above 1280 bytes. Nil means Dial if that is not nil.
	DialSmall func(ctx context.Context, network, addr string) (net.Conn, error)
	// MaxStreams bounds how many streams each end may have open at a time;
	// zero means DefaultMaxStreams. More wait in Open.
	MaxStreams int
	// Link is about the connection below the session.
	Link LinkOptions
	// Intake bounds what has been received and not been read, over all sessions
	// that share it; nil means ProcessIntake. The windows of yamux are fixed, and not
	// counted; SSH has a bound of its own, for each session.
	Intake *Intake
	// Log is told of handshakes that failed; nil means discard.
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
	// DefaultDetachWindow is how long a session outlives its connection.
	DefaultDetachWindow = 60 * time.Second
	// DefaultKeepalive is the silence after which the peer is asked for a sign
	// of life. With the questions that follow, a dead peer is found within 20
	// seconds.
	DefaultKeepalive = 14 * time.Second
	// DefaultConnections is how many connections a session may have, MaxConnections how
	// many it can be allowed.
	DefaultConnections = 16
	MaxConnections     = 64
)

// LinkOptions say how a session looks after the connection below it. Zero fields
// mean a good default.
type LinkOptions struct {
	// DetachWindow is how long a session waits, parked, for another connection
	// after it has lost one; zero means DefaultDetachWindow, and negative that
	// it ends with its connection. The shorter one of both ends' holds.
	DetachWindow time.Duration
	// Keepalive is how long a connection may be silent before the peer is asked
	// for a sign of life; zero means DefaultKeepalive. The longer one of both
	// ends' holds.
	Keepalive time.Duration
	// Metered lets Keepalive grow, to what the path is seen to bear: a dead peer
	// is found later, and an idle day costs less than 40 KiB.
	Metered bool
	// Connections is how many connections a session has at most, for bulk that is not to
	// hold up keystrokes; zero means DefaultConnections. Only qmux has more than one.
	Connections int
	// Congestion names the congestion control of TCP connections; empty and
	// "auto" mean bbr where the kernel lets this process choose it, and
	// "system" the system's own.
	Congestion string
	// Resume is asked at the accepting end, when a session is about to go on on
	// another connection of this peer, whether it still may: an error refuses. One that
	// wraps Busy means later: the session stays parked, and the dialing end tries again.
	// With any other it ends at both ends; the dialing end's error wraps a *Goodbye
	// with the error's Code and text, or with Denied if it has no Code. It must not
	// block. Nil means that whoever still has a valid certificate may. QUIC, which has
	// one connection, never asks.
	Resume func(Peer) error
}

// Window is DetachWindow with its default applied.
func (o LinkOptions) Window() time.Duration { return cmp.Or(o.DetachWindow, DefaultDetachWindow) }

// Interval is Keepalive with its default applied.
func (o LinkOptions) Interval() time.Duration { return cmp.Or(max(o.Keepalive, 0), DefaultKeepalive) }

// A LinkState is how the connection below a session fares, and has fared. Counts
// are since the session began.
type LinkState struct {
	// Parked is since when there is no connection; zero while there is one.
	Parked time.Time
	// Cause is why there is none; nil while there is one. It wraps Dead if the
	// peer fell silent, and is what the system said of the connection otherwise.
	Cause error
	// Heard is when something last came from the peer.
	Heard time.Time
	// Window is how long the session may stay parked; zero if it ends with its
	// connection.
	Window time.Duration
	// Addr is where the peer's packets come from by now.
	Addr net.Addr
	// RTT is the latest round trip; zero before the first.
	RTT time.Duration
	// Parks counts connections lost, Resumes those taken after the first.
	Parks, Resumes uint64
	// Replayed counts bytes sent again, Sent and Received bytes that went out and
	// came in, once each.
	Replayed, Sent, Received uint64
	// Queued is how many bytes wait to be sent or to be acknowledged.
	Queued int
	// Connections is how many there are now; zero if that is not known.
	Connections int
}

// told is the peer's Goodbye if err wraps one, whatever else err says of the
// session, and err otherwise.
func told(err error) error {
	var bye *Goodbye
	if errors.As(err, &bye) {
		return bye
	}
	return err
}

// DefaultIntake is the limit of a process's Intake, in bytes, if GOMEMLIMIT is not
// set. If it is, the limit is a quarter of that.
const DefaultIntake = 1 << 30

// An Intake is what the sessions that share it may have received for their streams
// and not yet handed to who reads them, in bytes. It bounds the windows that peers
// are given, and cuts off nobody. A transport whose windows cannot be narrowed may end a
// session that is granted no more: see package overyamux.
//
// Each stream has a small window that it needs to go on at all: see package qmux. What
// windows have beyond that is granted here. New streams are granted a quarter of the
// limit together, and windows that grow because they are in the way up to half of it.
// The other half is for the small windows. When more than half of the limit lies
// unread, nothing is granted, and a stream that is read gives its window back, except
// for a last part by which it still goes on.
//
// All methods may be called at the same time.
type Intake struct {
	limit   int64
	granted atomic.Int64
	unread  atomic.Int64
}

// NewIntake makes an Intake with a limit in bytes; zero means the default.
func NewIntake(limit int64) *Intake {
	return &Intake{limit: cmp.Or(max(limit, 0), intakeLimit(debug.SetMemoryLimit(-1)))}
}

// intakeLimit is the default for a process whose memory limit is known, or is
// math.MaxInt64 for none.
func intakeLimit(memory int64) int64 {
	if memory == math.MaxInt64 {
		return DefaultIntake
	}
	return max(memory/4, 1)
}

// ProcessIntake is the one that all sessions share that are not given another. It is
// made when first used.
var ProcessIntake = sync.OnceValue(func() *Intake { return NewIntake(0) })

// Limit is how many bytes may lie unread. See package qmux for what each stream may
// have beyond.
func (i *Intake) Limit() int64 { return i.limit }

// Unread is how many bytes lie unread.
func (i *Intake) Unread() int64 { return i.unread.Load() }

// Granted is how many bytes windows have been granted and have not given back.
func (i *Intake) Granted() int64 { return i.granted.Load() }

// Scarce says whether windows are to be given back.
func (i *Intake) Scarce() bool { return i.unread.Load() > i.limit/2 }

// Begin grants n bytes to the window of a new stream, or nothing.
func (i *Intake) Begin(n int) bool { return i.grant(int64(n), i.limit/4) }

// Share grants up to most bytes to the window of a new session whose transport has one
// for all its streams: an eighth of what is left for new ones, so that the first leave
// something to others. It grants nothing rather than less than least.
func (i *Intake) Share(least, most int) int {
	n := int(min((i.limit/4-i.Granted())/8, int64(most)))
	if n < least || !i.Begin(n) {
		return 0
	}
	return n
}

// Grow grants n bytes to a window that is in the way, or nothing.
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

// Return takes back n bytes that have been granted.
func (i *Intake) Return(n int) { i.granted.Add(-int64(n)) }

// AddUnread notes that n bytes have come or, below 0, that they were read or thrown away.
func (i *Intake) AddUnread(n int) { i.unread.Add(int64(n)) }

// Handshakes are those of a listener. All but the last only grow.
type Handshakes struct {
	// Done are those that were finished, Failed those that were not, be it that
	// the client had no valid certificate or never came to the point.
	Done, Failed uint64
	// Refused are clients that were sent away because there were too many.
	Refused uint64
	// Underway are those that are not over.
	Underway int
}
