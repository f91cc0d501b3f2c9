// Liveness: the session's timer, and the decisions that a connection or the peer is dead. No
// other file decides that.

package qmux

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// ackDelay is how long an acknowledgement waits for other frames to go with.
	ackDelay = 50 * time.Millisecond
	// minAckTimeout and maxAckTimeout bound how long the peer may owe an acknowledgement
	// before the connection is doubted.
	minAckTimeout = time.Second
	maxAckTimeout = 20 * time.Second
	// delayedAck is more than a system waits with the acknowledgement of a segment: Linux 200 ms.
	delayedAck = 250 * time.Millisecond
	// A connection moves data if it has received some, or acknowledgements, for longer than
	// movingTime without a pause longer than movingPauseLocked.
	movingTime = time.Second
	// If the timer fires later than lateTick the process must have been stopped. Then
	// there may be unread data of the peer's, and a connection that comes within grace
	// after the detach window may have waited to be accepted.
	lateTick = time.Second
	grace    = 10 * time.Second
	// rttSampleBytes is how many bytes a link that is never silent moves between two
	// measurements of the round trip.
	rttSampleBytes = 1 << 20
)

// scheduleLocked makes tick run at a time, or before.
func (s *Session) scheduleLocked(at time.Time) {
	if s.err != nil || !s.timerAt.IsZero() && !at.Before(s.timerAt) {
		return
	}
	s.timerAt = at
	s.timer.Reset(time.Until(at))
}

// ackSoonLocked makes pending acknowledgements leave within ackDelay.
func (s *Session) ackSoonLocked() {
	if s.ackAt.IsZero() {
		s.ackAt = time.Now().Add(ackDelay)
		s.scheduleLocked(s.ackAt)
	}
}

// watchLocked makes tick run when a connection on which data was just sent may have to be
// doubted.
func (s *Session) watchLocked(now time.Time) { s.scheduleLocked(now.Add(s.ackTimeoutLocked())) }

// ackTimeoutLocked is how long the peer may owe an acknowledgement.
func (s *Session) ackTimeoutLocked() time.Duration {
	return min(max(minAckTimeout, 4*s.keepalive.usualRTT)<<s.paths.rejoin.falseDoubts, maxAckTimeout)
}

// dueLocked says whether a time has passed, and clears it then. Else it schedules tick.
func (s *Session) dueLocked(at *time.Time, now time.Time) bool {
	if at.IsZero() || now.Before(*at) {
		if !at.IsZero() {
			s.scheduleLocked(*at)
		}
		return false
	}
	*at = time.Time{}
	return true
}

// tick is the session's timer.
func (s *Session) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	now := time.Now()
	late := s.overdueLocked(now)
	if late {
		s.lateAt = now
	}
	s.timerAt = time.Time{}
	if s.dueLocked(&s.ackAt, now) {
		for _, c := range slices.Clone(s.conns) {
			c.startWritingLocked()
		}
	}
	if s.dueLocked(&s.paths.addingUntil, now) {
		s.releaseBulkLocked()
	}
	if s.dueLocked(&s.paths.heldUntil, now) {
		s.sendHeldLocked(now)
	}
	if s.dueLocked(&s.paths.sweepAt, now) {
		s.sweepLocked(now)
	}
	if len(s.conns) == 0 {
		if p := &s.paths; p.parkLevel == slog.LevelDebug && now.Sub(p.parkLoggedAt) >= time.Second {
			s.logParkLocked(now)
		}
		s.expireLocked(now)
		return
	}
	if s.paths.rejoin.shortLived > 1 {
		s.addConnsLocked() // it has waited for the first connection to live for a while
	}
	for _, c := range slices.Clone(s.conns) {
		if late && !c.owedSince.IsZero() && !c.owedReset {
			c.owedSince, c.slowSince, c.owedReset = now, time.Time{}, true // once: a busy process may be late again and again
		}
		if s.extended && !c.detached {
			s.checkLocked(c, now)
		}
		if c == s.firstLocked() {
			s.keepaliveLocked(c, now, late)
		}
	}
}

// overdueLocked says whether the timer should have fired more than lateTick ago.
func (s *Session) overdueLocked(now time.Time) bool {
	return !s.timerAt.IsZero() && now.Sub(s.timerAt) > lateTick
}

// expireLocked ends the session once it has been parked for the detach window.
func (s *Session) expireLocked(now time.Time) {
	end := s.stats.Parked.Add(s.conf.terms.window)
	if now.Before(end) {
		s.scheduleLocked(end)
		return
	}
	r := &s.paths.rejoin
	if now.Sub(end) > lateTick && r.graceUntil.IsZero() {
		r.graceUntil = now.Add(grace)
	}
	if now.Before(r.graceUntil) {
		s.scheduleLocked(r.graceUntil)
		return
	}
	s.failLocked(sessionEnded("detach window is over", s.stats.Cause))
}

// keepaliveLocked sends a ping on the first connection after an interval of silence, and
// gives the connection up if no answer comes. While data is in flight the interval is the
// one agreed on. The accepting end waits longer, so that usually the dialing end pings. A
// process that was stopped pings again first. A peer whose TCP acknowledges the ping is not
// dead: it may have too much to do, and to come back would be more work for it. It is pinged
// again until slowTimeout is over.
func (s *Session) keepaliveLocked(c *conn, now time.Time, late bool) {
	due, wait := c.lastReceived.Add(s.keepalive.interval), s.keepalive.pongTimeout()
	if owed := c.owedSince.Add(s.keepalive.base); c.inFlight > 0 && owed.Before(due) {
		due = owed
	}
	if !s.dialing {
		due, wait = due.Add(s.keepalive.acceptorDelay()), wait-s.keepalive.acceptorDelay()
	}
	dead := c.probedAt.Add(wait)
	ask := false
	switch {
	case c.probedAt.IsZero() && now.Before(due):
		s.scheduleLocked(due)
		if ask = s.dialing && c.pingNumber == 0 && s.moved-s.keepalive.sampledAt >= rttSampleBytes; ask {
			s.keepalive.sampledAt = s.moved
		}
	case c.probedAt.IsZero() || late:
		ask, c.probedAt = true, now
		s.keepalive.trial = s.keepalive.metered && now.Sub(c.lastReceived) >= s.keepalive.interval
		s.scheduleLocked(now.Add(wait))
	case now.Before(dead):
		s.scheduleLocked(dead)
	case now.Before(due.Add(s.keepalive.slowTimeout())) && carrier.Acknowledges(c.tls, max(now.Sub(c.probedAt), carrier.AckTime(c.tls))):
		ask, c.probedAt = true, now
		s.scheduleLocked(now.Add(wait))
	default:
		s.lostLocked(c, silentError(now.Sub(c.lastReceived)))
	}
	if ask {
		c.pingLocked()
	}
}

// pingLocked sends a QX_PING.
func (c *conn) pingLocked() {
	c.control.ping = true
	c.startWritingLocked()
}

// endedLocked is why c was lost, after its read failed with err. A peer that hears nothing ends the
// connection itself, and what was sent to it has not arrived for longer than that takes: the path
// to it is broken. A peer that is stopped or killed has a system that acknowledges, if slowly. While
// this process was stopped the peer has heard nothing either.
func (c *conn) endedLocked(err error) error {
	now, late := time.Now(), max(delayedAck, 2*c.s.keepalive.usualRTT)
	if c.s.overdueLocked(now) || now.Sub(c.s.lateAt) < lateTick {
		return fmt.Errorf("%w: the connection ended while this process was stopped: %w", tunnel.Dead, err)
	}
	quiet := now.Sub(c.lastSent)
	if !c.owedSince.IsZero() {
		quiet = max(quiet, now.Sub(c.owedSince))
	}
	if quiet < late || !carrier.Undelivered(c.tls) {
		return fmt.Errorf("%w: %w", tunnel.Lost, err)
	}
	return fmt.Errorf("%w: nothing that was sent has arrived for %v: %w", tunnel.Dead, quiet.Round(time.Millisecond), err)
}

// movingPauseLocked is the longest pause in data that moves.
func (s *Session) movingPauseLocked() time.Duration { return 2 * s.ackTimeoutLocked() }

// movedLocked notes that stream data, or an acknowledgement of it, was received on c. In the
// pauses of data that moves the dialing end probes the peer. The sender, if it is the
// accepting end, cannot dial; if it is the dialing end, it may wait for a window that was
// raised on a dead connection, with nothing in flight.
func (c *conn) movedLocked() {
	if c.lastReceived.Sub(c.lastMoved) > c.s.movingPauseLocked() {
		c.movingSince = c.lastReceived
	}
	c.lastMoved = c.lastReceived
	c.s.probeLocked(c, c.lastReceived)
}

// probeLocked pings on a connection that moves data after half of the acknowledgement
// timeout in silence, and again until the data is overdue.
func (s *Session) probeLocked(c *conn, now time.Time) {
	if s.dial == nil || !c.owedSince.IsZero() || c.lastMoved.Sub(c.movingSince) <= movingTime || now.Sub(c.lastMoved) > s.movingPauseLocked()+s.ackTimeoutLocked() {
		return
	}
	if due := c.lastReceived.Add(s.ackTimeoutLocked() / 2); now.Before(due) {
		s.scheduleLocked(due)
		return
	}
	c.pingLocked()
}

// checkLocked doubts a connection on which data is not acknowledged in time, which is also the time
// that TCP has measured, unless TCP acknowledges it: then the path is slow, or the peer. Where TCP
// has delivered everything and says nothing more, it has a ping to acknowledge. The longer this goes
// on the more seldom that is: a slow peer has enough to do. A connection beside the first is given
// up when the first would be: a proxy may acknowledge that has lost what is behind it.
func (s *Session) checkLocked(c *conn, now time.Time) {
	timeout := s.ackTimeoutLocked()
	s.probeLocked(c, now)
	if !c.slowSince.IsZero() {
		slow := now.Sub(c.slowSince)
		left := s.keepalive.base + s.keepalive.slowTimeout() - slow
		first := s.firstLocked()
		switch beside := c != first; {
		case beside && left <= 0:
			s.paths.besideDoubtedLocked(now)
			s.lostLocked(c, silentError(now.Sub(c.lastReceived)))
			first.sendDoubtedLocked(c.number) // a reset of c may not reach the peer
			return
		case beside:
			timeout = max(timeout, min(slow/2, left))
		default:
			timeout = max(timeout, slow/2)
		}
	}
	since, owes := c.owedSince, true
	switch {
	case !c.owedSince.IsZero() && (c.inFlight > 0 || c.pingNumber != 0):
	case c.writing: // a write is blocked, though nothing may be in flight
		if since = c.lastSent; c.lastReceived.After(since) {
			since = c.lastReceived
		}
	default: // only TCP has something to acknowledge, if any
		since, owes = c.lastSent, false
	}
	if now.Sub(since) >= timeout {
		timeout = max(timeout, carrier.AckTime(c.tls))
	}
	if left := timeout - now.Sub(since); left > 0 {
		s.scheduleLocked(now.Add(left))
		return
	}
	if !owes {
		if s.dial != nil && now.Sub(since) < 4*timeout && carrier.Stuck(c.tls, timeout) {
			s.doubtLocked(c)
		}
		return
	}
	works := carrier.Acknowledges(c.tls, timeout)
	switch {
	case !works && !carrier.Delivered(c.tls):
		s.doubtLocked(c)
	case !c.owedSince.IsZero():
		c.owedSince = now
		if c.slowSince.IsZero() {
			c.slowSince = now
		}
		if !works {
			c.pingLocked()
		}
	}
	s.watchLocked(now)
}
