// Demand: how lanes are asked for, made and chosen.

package lanes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// demand is what is known of lanes that are not there yet. The session's mu
// guards it.
type demand struct {
	waiting int           // directions that wait for a lane
	rtt     time.Duration // at most, by how long the latest lane took to come; zero before
	vain    bool          // somebody has waited in vain since a lane last came: nobody waits again

	// At the dialing end.
	dials    int // under way
	last     int // the latest lane's number
	failures int // since a lane was last made
	retry    time.Time

	// At the other end.
	asked   int // how many lanes, when last asked
	askedAt time.Time
}

// limit is how much a direction may say at home before it moves.
func (s *Session) limit() int {
	s.mu.Lock()
	up := len(s.lanes)
	s.mu.Unlock()
	if up == 0 && s.isShort() {
		return s.tune.near
	}
	return s.tune.far
}

// isShort says whether the path is known to be short. It may have changed since
// anybody measured: how long a lane took to come tells, and if that was only
// because an end is busy, there are more lanes than would have done.
func (s *Session) isShort() bool {
	var rtt time.Duration
	if s.config.RTT != nil {
		rtt = s.config.RTT()
	} else if l, ok := tunnel.LinkOf(s.home); ok {
		rtt = l.RTT
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return rtt > 0 && max(rtt, s.demand.rtt) < s.tune.short
}

// needLocked is how many lanes beside lane 0 would do for those that have moved,
// those that wait and more of them. On a short path one connection carries as much
// as several, and for less.
func (s *Session) needLocked(more int, short bool) int {
	n := s.demand.waiting + more
	for _, l := range s.lanes {
		n += l.loadLocked()
	}
	if short {
		n = min(n, 1)
	}
	return min(n, s.config.Max-1)
}

// warm sees that there will be lanes for those that wait and more of them. At the
// accepting end it says how many to ask the peer for; zero if there is nothing to
// ask.
func (s *Session) warm(more int) (ask int) {
	short := s.isShort()
	s.mu.Lock()
	defer s.mu.Unlock()
	need := s.needLocked(more, short)
	if s.dialing {
		s.makeLocked(need)
		return 0
	}
	d, now := &s.demand, time.Now()
	if need <= len(s.lanes) || need <= d.asked && now.Sub(d.askedAt) < s.tune.asking {
		return 0
	}
	d.asked, d.askedAt = need, now
	return min(need, maxWanted)
}

// cameLocked notes how long a lane took to come: the asking, a connection, its
// handshake and its greeting, each a round trip or so.
func (s *Session) cameLocked(took time.Duration) { s.demand.rtt = max(took/4, 1) }

// wanted does what the peer asks for.
func (s *Session) wanted(lanes int) error {
	if !s.dialing {
		return fmt.Errorf("%w: asked for lanes at the end that makes none", tunnel.ErrFrame)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.makeLocked(min(lanes, s.config.Max-1))
	return nil
}

// makeLocked dials as many lanes as are missing.
func (s *Session) makeLocked(want int) {
	d := &s.demand
	for len(s.lanes)+d.dials < want && !time.Now().Before(d.retry) {
		number := d.last + 1
		if number > maxLane || !s.spawnLocked(func() { s.dial(number) }) {
			return
		}
		d.last = number
		d.dials++
	}
}

// dial makes a lane.
func (s *Session) dial(number int) {
	ctx, cancel := context.WithTimeout(s.home.Context(), s.tune.dial)
	defer cancel()
	began := time.Now()
	session, err := s.config.Dial(ctx, number)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cameLocked(time.Since(began))
	d := &s.demand
	d.dials--
	if err != nil {
		pause := min(s.tune.backoff<<min(d.failures, 16), s.tune.maxBackoff)
		d.failures++
		d.vain = true
		d.retry = time.Now().Add(pause)
		s.notifyLocked() // nobody need wait for it
		s.log.Info("cannot add a lane", "lane", number, "retry", pause, "err", err)
		return
	}
	d.failures = 0
	if err := s.joinLocked(number, session); err != nil {
		s.log.Debug("lane is not wanted any more", "lane", number, "err", err)
		// Nothing is left to join it but Close itself, which must not wait for
		// whoever holds mu.
		s.mu.Unlock()
		_ = session.Close() // its end is what matters
		s.mu.Lock()
	}
}

// Add gives the accepting end a lane that its peer has dialed, and the Session
// owns it: on error it is closed.
func (s *Session) Add(lane int, session tunnel.Session) error {
	err := fmt.Errorf("%w: this end makes the lanes", tunnel.Invalid)
	if !s.dialing {
		s.mu.Lock()
		if took := time.Since(s.demand.askedAt); s.demand.asked > len(s.lanes) && took < s.tune.patience {
			s.cameLocked(took)
		}
		err = s.joinLocked(lane, session)
		s.mu.Unlock()
	}
	if err != nil {
		_ = session.Close() // the other error is the news
		return fmt.Errorf("add lane %d: %w", lane, err)
	}
	return nil
}

func (s *Session) joinLocked(number int, session tunnel.Session) error {
	switch {
	case s.over:
		return fmt.Errorf("%w: lane 0 is gone", tunnel.Lost)
	case number < 1 || number > maxLane || s.lanes[number] != nil || s.ended.causes[number] != nil:
		return fmt.Errorf("%w: lane %d is there, or has been", tunnel.Invalid, number)
	case len(s.lanes) >= s.config.Max-1:
		return fmt.Errorf("%w: %d lanes are the limit", tunnel.Busy, s.config.Max)
	}
	l := &lane{of: s, number: number, session: session, legs: make(map[*leg]struct{}), quiet: time.Now()}
	s.lanes[number] = l
	s.demand.vain = false
	s.notifyLocked()
	s.spawnLocked(l.run)
	return nil
}

// errNoLane says that a direction has to stay at home.
var errNoLane = errors.New("no lane")

// pick chooses the lane with the fewest legs and reserves a place on it, which
// the caller must give back with release. If it pays to wait for another lane
// there is neither a lane nor an error, and changed is closed when it pays to
// look again.
func (s *Session) pick() (l *lane, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.lanes {
		if other.usableLocked() && (l == nil || other.loadLocked() < l.loadLocked() ||
			other.loadLocked() == l.loadLocked() && other.number < l.number) {
			l = other
		}
	}
	pending := s.demand.dials > 0
	if !s.dialing {
		pending = s.demand.asked > len(s.lanes) && time.Since(s.demand.askedAt) < s.tune.patience
	}
	pending = pending && !s.demand.vain
	switch {
	// While lanes are being made for several directions the first to come must
	// not get them all.
	case l != nil && (l.loadLocked() == 0 || !pending):
		l.reserved++
		return l, nil, nil
	case pending:
		return nil, s.changed, nil
	default:
		return nil, nil, errNoLane
	}
}

// disappoint notes that somebody has waited in vain.
func (s *Session) disappoint() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.demand.vain = true
}

// wait counts those that wait for a lane.
func (s *Session) wait(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.demand.waiting += n
}
