// Stats: what a link says of itself.

package link

import (
	"net"
	"time"
)

// Stats are how a link fares, and counts since its birth.
type Stats struct {
	// Parked is since when there is no transport; zero while there is one.
	Parked time.Time
	// Cause is why there is none; nil while there is one.
	Cause error
	// Heard is when something last came from the peer.
	Heard time.Time
	// Addr is the peer's, of the latest transport.
	Addr net.Addr
	// Window is how long the link may stay parked, as both ends agreed.
	Window time.Duration
	// RTT is the latest round trip; zero before the first is known. The
	// accepting end has it from the dialing end.
	RTT time.Duration
	// Queued is how many bytes of this end's are in the ring: neither
	// acknowledged by the peer nor, perhaps, sent.
	Queued int
	// Parks and Resumes count transports lost, but not those that gave way to
	// another, and transports taken after the first.
	Parks, Resumes uint64
	// Replayed counts bytes sent again.
	Replayed uint64
	// Sent and Received are offsets: bytes that have gone out at least once, and
	// bytes that came in.
	Sent, Received uint64
}

// Stats is how the link has fared.
func (l *Link) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.statsLocked()
}

func (l *Link) statsLocked() Stats {
	s := l.stats
	s.Cause, s.Heard = l.park.cause, l.born.Add(l.pulse.heard)
	if l.last != nil {
		s.Addr = l.last.conn.RemoteAddr()
	}
	s.RTT, s.Window, s.Queued = l.pulse.rtt, l.conf.Window, int(l.out.ring.end-l.out.ring.base)
	s.Sent, s.Received = l.out.high, l.in.received
	return s
}

// Tell has f called whenever the link is parked and whenever it has a transport
// again, with what Stats would say, and now if it is parked; a transport that gives
// way to another is no change. f takes the place of any before it. It is called with the link locked: it
// must return at once and not call the link.
func (l *Link) Tell(f func(Stats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell, l.park.told = f, false
	if f != nil && !l.park.since.IsZero() && !l.park.moving && !l.state.over {
		l.park.told = true
		f(l.statsLocked())
	}
}
