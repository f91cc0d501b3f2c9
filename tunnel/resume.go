// Resuming: what a session says of the connection below it, which it may
// outlive.

package tunnel

import (
	"context"
	"net"
	"time"
)

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
	// Buffer bounds in bytes what one session keeps to send again; zero means
	// 16 MiB.
	Buffer int
	// Connections is how many connections a session has at most, for bulk that is not to
	// hold up keystrokes; zero means DefaultConnections. Only qmux has more than one.
	Connections int
	// Budget bounds in bytes what all sessions of a listener keep to send again;
	// zero means 256 MiB.
	Budget int64
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
func (o LinkOptions) Window() time.Duration {
	if o.DetachWindow == 0 {
		return DefaultDetachWindow
	}
	return o.DetachWindow
}

// Interval is Keepalive with its default applied.
func (o LinkOptions) Interval() time.Duration {
	if o.Keepalive <= 0 {
		return DefaultKeepalive
	}
	return o.Keepalive
}

// A Resumer is a Session that outlives its connection and sees to its liveness
// itself.
type Resumer interface {
	Session
	// Link is how the connection below fares.
	Link() LinkState
	// Move puts the session on a new connection, made by the end that dialed,
	// because the old one may not last: the machine has another address, or
	// woke up. The old connection carries on until the new one does. It fails
	// on the accepting end, and if no connection comes about before ctx is
	// done; the session is none the worse for it.
	Move(ctx context.Context) error
}

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
}

// LinkOf is the state of s's connection, and whether s can outlive it.
func LinkOf(s Session) (LinkState, bool) {
	r, ok := s.(Resumer)
	if !ok {
		return LinkState{}, false
	}
	l := r.Link()
	return l, l.Window > 0
}

// A Teller is a Resumer that says by itself when it is parked and when it goes on.
type Teller interface {
	Resumer
	// Tell has f called from now on, with the state after the change, whenever the
	// session loses its connection and whenever it has one again; its end is for
	// Context to tell. If it has none already, f is called before Tell returns. A
	// connection that gives way to the next without a gap is no change. Calls come
	// one after the other, in the order of the changes. f takes the place of any
	// before it; it must return at once and not call the session.
	Tell(f func(LinkState))
}

// Tell has s tell f of its parking if it is a Teller, and says whether it is.
func Tell(s Session, f func(LinkState)) bool {
	t, ok := s.(Teller)
	if ok {
		t.Tell(f)
	}
	return ok
}

// Move moves s if it is a Resumer, and does nothing otherwise.
func Move(ctx context.Context, s Session) error {
	if r, ok := s.(Resumer); ok {
		return r.Move(ctx)
	}
	return nil
}

// isParked says whether s waits for another connection.
func isParked(s Session) bool {
	l, ok := LinkOf(s)
	return ok && !l.Parked.IsZero()
}
