// Hold: how much bulk may be in flight on the first connection, which small data needs, and which
// streams send nothing for a while.

package qmux

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// After a loss minTrusted bytes of bulk may be in flight on the first connection, and more with
	// acknowledgements that TCP has without a queue (queued). From maxTrusted on there is no such bound.
	minTrusted    = 16 << 10
	maxTrusted    = 512 << 10
	maxTrustedRTT = time.Second
)

// holdsBulkLocked says whether bulk waits: as much as c may have is in flight on it, while
// connections for the rest are being made or it is unknown what the path carries. What is lost
// of it would delay small data.
func (c *conn) holdsBulkLocked() bool {
	adding := !c.s.paths.addingUntil.IsZero() && c.inFlight >= c.s.firstTakesLocked()
	return (adding || c.trusted > 0 && c.bulkInFlight >= c.trusted) && c == c.s.firstLocked()
}

// distrustLocked has little bulk be in flight on c: another connection of the session has fallen
// silent, and the congestion window of c may be that of a path that is no more.
func (c *conn) distrustLocked() { c.trusted = minTrusted }

// trustLocked lets more be in flight, as in slow start (RFC 5681), after n bytes have been
// acknowledged without a queue in front of the path.
func (c *conn) trustLocked(n int) {
	if c.trusted == 0 {
		return
	}
	if now, shortest := carrier.RoundTrip(c.tls); queued(now, shortest, c.s.keepalive.usualRTT) {
		return
	}
	if c.trusted += n; c.trusted >= maxTrusted {
		c.trusted = 0
	}
}

// queued says whether a round trip of TCP's has a queue in it: it is longer than TCP's shortest,
// which a long path has, too, and than the session's usual one, which follows queues up to
// maxTrustedRTT.
func queued(now, shortest, usual time.Duration) bool {
	return now > shortest+maxQueueDelay && now > min(usual+maxQueueDelay, maxTrustedRTT)
}

// holdBulkLocked has bulk wait for connections that are being made, for a bounded time.
func (s *Session) holdBulkLocked() {
	s.paths.addingUntil = time.Now().Add(s.ackTimeoutLocked())
	s.scheduleLocked(s.paths.addingUntil)
}

// releaseBulkLocked ends that.
func (s *Session) releaseBulkLocked() {
	s.paths.addingUntil = time.Time{}
	s.resumeBulkLocked()
}

// resumeBulkLocked has the first connection send bulk that it may have held: less is in flight now.
func (s *Session) resumeBulkLocked() {
	if first := s.firstLocked(); first != nil && len(first.bulk) > 0 {
		first.startWritingLocked()
	}
}

// holdStuckLocked notes that the connections lost were lost together, and no other is left. Data that
// was in flight then and at the two losses before may be what breaks them, as where a middlebox filters
// contents. Its stream is held for a while, in which the others have a connection. Each stream is held
// for another time: only one of them may be at fault.
func (s *Session) holdStuckLocked(lost ...*conn) {
	for _, st := range s.streams {
		o := &st.out
		if !slices.ContainsFunc(o.runs, func(r run) bool { return slices.Contains(lost, r.c) }) {
			continue
		}
		if o.lost != o.base+1 {
			o.lost, o.losses = o.base+1, 0
		}
		if o.losses++; o.losses > 2 {
			bound := min(minBackoff<<min(o.losses-1, 6), maxBackoff)
			o.held = time.Now().Add(rand.N(bound))
			s.holdUntilLocked(o.held)
		}
	}
}

func (s *Session) holdUntilLocked(at time.Time) {
	if p := &s.paths; p.heldUntil.IsZero() || at.Before(p.heldUntil) {
		p.heldUntil = at
		s.scheduleLocked(at)
	}
}

// sendHeldLocked sends what was held for long enough.
func (s *Session) sendHeldLocked(now time.Time) {
	for _, st := range s.streams {
		switch at := st.out.held; {
		case at.IsZero():
		case now.Before(at):
			s.holdUntilLocked(at)
		default:
			st.out.held = time.Time{}
			s.sendLocked(st)
		}
	}
}
