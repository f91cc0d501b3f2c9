// Liveness: when something is due, and which connections are doubted. This is the one
// place that decides that a connection, or the peer, is dead.

package qmux

import (
	"slices"
	"time"

	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// ackDelay is how long an acknowledgement waits for something that it can go with.
	ackDelay = 50 * time.Millisecond
	// leastPatience is how long the peer may owe an acknowledgement at least before the
	// connection is doubted.
	leastPatience = time.Second
	mostPatience  = 20 * time.Second
	// A connection on which data has come for longer than moving, with no pause longer
	// than pauseLocked, moves something.
	moving = time.Second
	// starved is how late something may be noticed before this process must have been
	// stopped: what the peer said meanwhile has not been read yet, and a connection that
	// comes after the window, but within grace, may have waited at its door.
	starved = time.Second
	grace   = 10 * time.Second
	// sampleEvery is how many bytes move, on a link that is never silent, before the
	// round trip is measured again.
	sampleEvery = 1 << 20
)

// scheduleLocked has tick called at a time, or before.
func (s *Session) scheduleLocked(at time.Time) {
	if s.over != nil || !s.timerAt.IsZero() && !at.Before(s.timerAt) {
		return
	}
	s.timerAt = at
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Until(at), s.tick)
	} else {
		s.timer.Reset(time.Until(at))
	}
}

// ackSoonLocked has what waits for company said before long.
func (s *Session) ackSoonLocked() {
	if s.ackAt.IsZero() {
		s.ackAt = time.Now().Add(ackDelay)
		s.scheduleLocked(s.ackAt)
	}
}

// watchLocked has the session looked at when a connection on which something was just
// sent may be doubted.
func (s *Session) watchLocked(now time.Time) { s.scheduleLocked(now.Add(s.patienceLocked())) }

// patienceLocked is how long the peer may owe an acknowledgement.
func (s *Session) patienceLocked() time.Duration {
	return min(max(leastPatience, 4*s.pulse.rtt)<<s.paths.rejoin.vain, mostPatience)
}

// comeLocked says whether a time has come, which it clears then; else tick is called
// again.
func (s *Session) comeLocked(at *time.Time, now time.Time) bool {
	if at.IsZero() || now.Before(*at) {
		if !at.IsZero() {
			s.scheduleLocked(*at)
		}
		return false
	}
	*at = time.Time{}
	return true
}

// tick does what is due.
func (s *Session) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return
	}
	now := time.Now()
	late := !s.timerAt.IsZero() && now.Sub(s.timerAt) > starved
	s.timerAt = time.Time{}
	if s.comeLocked(&s.ackAt, now) {
		for _, c := range slices.Clone(s.conns) {
			c.kickLocked()
		}
	}
	if s.comeLocked(&s.paths.sweepAt, now) {
		s.sweepLocked(now)
	}
	if len(s.conns) == 0 {
		s.expireLocked(now)
		return
	}
	for _, c := range slices.Clone(s.conns) {
		if late && !c.asked.IsZero() && !c.excused {
			c.asked, c.excused = now, true // once: a process may be late for as long as it has much to do
		}
		if s.extended && !c.gone {
			s.checkLocked(c, now)
		}
		if c == s.firstLocked() {
			s.beatLocked(c, now, late)
		}
	}
}

// expireLocked gives the session up once it has been parked for the whole window.
func (s *Session) expireLocked(now time.Time) {
	end := s.stats.Parked.Add(s.conf.terms.window)
	if now.Before(end) {
		s.scheduleLocked(end)
		return
	}
	r := &s.paths.rejoin
	if now.Sub(end) > starved && r.spared.IsZero() {
		r.spared = now.Add(grace)
	}
	if now.Before(r.spared) {
		s.scheduleLocked(r.spared)
		return
	}
	s.failLocked(ended("detach window is over", s.stats.Cause))
}

// beatLocked asks on the first connection for a sign of life when it has been silent for
// an interval, which is the one agreed upon while something is unacknowledged, and gives
// it up when none comes. The accepting end does so only when the dialing one has missed its
// turn. A process that was stopped asks again first.
func (s *Session) beatLocked(c *conn, now time.Time, late bool) {
	due, wait := c.heard.Add(s.pulse.interval), s.pulse.patience()
	if owed := c.asked.Add(s.pulse.base); c.unacked > 0 && owed.Before(due) {
		due = owed
	}
	if !s.dialing {
		due, wait = due.Add(s.pulse.retry()), wait-s.pulse.retry()
	}
	dead := c.probed.Add(wait)
	ask := false
	switch moved := s.stats.Received + s.stats.Sent; {
	case c.probed.IsZero() && now.Before(due):
		s.scheduleLocked(due)
		if ask = s.dialing && c.question == 0 && moved-s.pulse.sampled >= sampleEvery; ask {
			s.pulse.sampled = moved
		}
	case c.probed.IsZero() || late:
		ask, c.probed = true, now
		s.pulse.trial = s.pulse.metered && now.Sub(c.heard) >= s.pulse.interval
		s.scheduleLocked(now.Add(wait))
	case now.Before(dead):
		s.scheduleLocked(dead)
	default:
		s.lostLocked(c, silence(now.Sub(c.heard)))
	}
	if ask {
		c.askLocked()
	}
}

// askLocked asks for a sign of life.
func (c *conn) askLocked() {
	c.say.ping = true
	c.kickLocked()
}

// pauseLocked is how long nothing may come before what moved has stopped.
func (s *Session) pauseLocked() time.Duration { return 2 * s.patienceLocked() }

// movesLocked notes that data has come. The dialing end asks after its peer in the pauses
// of what moves: whoever sends it cannot connect anew.
func (c *conn) movesLocked() {
	if c.heard.Sub(c.came) > c.s.pauseLocked() {
		c.since = c.heard
	}
	c.came = c.heard
	c.s.probeLocked(c, c.heard)
}

// probeLocked asks whether a connection is still there on which something moves, once it
// has been silent for half of what is bearable, and again until what moves is overdue.
func (s *Session) probeLocked(c *conn, now time.Time) {
	if s.dial == nil || !c.asked.IsZero() || c.came.Sub(c.since) <= moving || now.Sub(c.came) > s.pauseLocked()+s.patienceLocked() {
		return
	}
	if due := c.heard.Add(s.patienceLocked() / 2); now.Before(due) {
		s.scheduleLocked(due)
		return
	}
	c.askLocked()
}

// checkLocked doubts a connection on which what was sent is not acknowledged.
func (s *Session) checkLocked(c *conn, now time.Time) {
	patience := s.patienceLocked()
	s.probeLocked(c, now)
	since := c.asked
	switch {
	case !c.asked.IsZero() && (c.unacked > 0 || c.question != 0):
	case c.writing: // what is written need not be anything that the peer has not
		if since = c.wrote; c.heard.After(since) {
			since = c.heard
		}
	default:
		if now.Sub(c.wrote) < patience {
			s.scheduleLocked(c.wrote.Add(patience))
		} else if s.dial != nil && now.Sub(c.wrote) < 4*patience && carrier.Stuck(c.tls, patience) {
			s.doubtLocked(c)
		}
		return
	}
	if left := patience - now.Sub(since); left > 0 {
		s.scheduleLocked(now.Add(left))
		return
	}
	if !carrier.Acknowledges(c.tls, patience) {
		s.doubtLocked(c)
	} else if !c.asked.IsZero() {
		c.asked = now // the path is slow, not dead
	}
	s.watchLocked(now)
}
