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
	// asleep is how late the end of the window may be noticed before this process must
	// have been stopped: then it takes until grace is over for a connection that may be
	// waiting at its door.
	asleep = time.Second
	grace  = 10 * time.Second
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
// sent may be doubted, and when the pulse is due.
func (s *Session) watchLocked(now time.Time) {
	if s.extended {
		s.scheduleLocked(now.Add(s.patienceLocked()))
	}
}

// oweLocked tells the pulse whether bytes wait to be acknowledged on the first
// connection.
func (s *Session) oweLocked(c *conn, now time.Time) {
	if c != s.firstLocked() {
		return
	}
	if next, sooner := s.pulse.owe(s.since(now), c.unacked > 0); sooner {
		s.scheduleLocked(s.born.Add(next))
	}
}

// patienceLocked is how long the peer may owe an acknowledgement.
func (s *Session) patienceLocked() time.Duration {
	return min(max(leastPatience, 4*s.pulse.rtt)<<s.paths.rejoin.vain, mostPatience)
}

// tick does what is due.
func (s *Session) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return
	}
	now := time.Now()
	s.timerAt = time.Time{}
	if !s.ackAt.IsZero() {
		if !now.Before(s.ackAt) {
			s.ackAt = time.Time{}
			for _, c := range slices.Clone(s.conns) {
				c.kickLocked()
			}
		} else {
			s.scheduleLocked(s.ackAt)
		}
	}
	if at := s.paths.sweepAt; !at.IsZero() && !now.Before(at) {
		s.sweepLocked(now)
	} else if !at.IsZero() {
		s.scheduleLocked(at)
	}
	if len(s.conns) == 0 {
		s.expireLocked(now)
		return
	}
	s.checkLocked(now)
	s.beatLocked()
}

// expireLocked gives the session up once it has been parked for the whole window.
func (s *Session) expireLocked(now time.Time) {
	end := s.stats.Parked.Add(s.conf.terms.window)
	if now.Before(end) {
		s.scheduleLocked(end)
		return
	}
	r := &s.paths.rejoin
	if now.Sub(end) > asleep && r.spared.IsZero() {
		r.spared = now.Add(grace)
	}
	if now.Before(r.spared) {
		s.scheduleLocked(r.spared)
		return
	}
	s.failLocked(expired(s.stats.Cause))
}

// beatLocked asks the peer for a sign of life if it has been silent for long.
func (s *Session) beatLocked() {
	c := s.firstLocked()
	if c == nil {
		return
	}
	b := s.pulse.tick(s.now(), s.stats.Received+s.stats.Sent)
	if b.dead > 0 {
		s.lostLocked(c, silence(b.dead))
		return
	}
	s.scheduleLocked(s.born.Add(b.next))
	if b.ask {
		c.say.ping = true
		c.kickLocked()
	}
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
	c.say.probe = true
	c.kickLocked()
}

// checkLocked looks for connections on which what was sent is not acknowledged.
func (s *Session) checkLocked(now time.Time) {
	if !s.extended {
		return
	}
	patience := s.patienceLocked()
	for _, c := range slices.Clone(s.conns) {
		if c.gone {
			continue
		}
		s.probeLocked(c, now)
		var since time.Time
		if c.unacked > 0 || c.probe > 0 || s.pulse.open > 0 && c == s.firstLocked() {
			since = c.asked
		}
		if since.IsZero() {
			if now.Sub(c.wrote) < patience {
				s.scheduleLocked(c.wrote.Add(patience))
			} else if s.dial != nil && now.Sub(c.wrote) < 4*patience && carrier.Stuck(c.tls, patience) {
				s.doubtLocked(c)
			}
			continue
		}
		if left := patience - now.Sub(since); left > 0 {
			s.scheduleLocked(now.Add(left))
			continue
		}
		if carrier.Acknowledges(c.tls, patience) {
			c.asked = now // the path is slow, not dead
			s.scheduleLocked(now.Add(patience))
			continue
		}
		s.doubtLocked(c)
		s.scheduleLocked(now.Add(patience))
	}
}
