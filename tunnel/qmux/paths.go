// Paths: which connection a stream takes, and what becomes of those that are lost.

package qmux

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"time"
)

const (
	// A direction that has sent this much, with leak bytes a second taken off, is given
	// a connection of its own: far on a long path, where a keystroke behind it waits; near
	// on a short one, where a list of pods is not worth a handshake.
	far  = 64 << 10
	near = 256 << 10
	leak = 16 << 10
	// A path whose round trip is longer is long.
	long = 5 * time.Millisecond

	// A direction that has sent less than calm in sweepEvery gives its connection back.
	sweepEvery = 2 * time.Second
	calm       = 16 << 10
	// idleAfter is how long a connection beside the first is kept that nobody has for
	// their own.
	idleAfter = 30 * time.Second
)

// paths is what a session knows of its connections besides themselves.
type paths struct {
	last     net.Addr // where the latest one that was lost came from,
	lostRate float64  // and what it knew the path to take, in bytes a second; 0: nothing
	wanted   int      // beside the first, by the peer
	asked    int      // by us, when last said
	dials    int      // under way
	retry    time.Time
	fails    int
	sweepAt  time.Time
	rejoin   rejoin
}

// A load is how much a direction sends.
type load struct {
	bytes int // with leak taken off
	at    time.Time
	swept int  // bytes since the last sweep
	more  bool // waits to be sent
}

// firstLocked is the connection that carries what is small; nil if there is none.
func (s *Session) firstLocked() *conn {
	if len(s.conns) == 0 {
		return nil
	}
	return s.conns[0]
}

// connFor is the connection that st's data takes; nil if there is none.
func (s *Session) connFor(st *stream) *conn {
	if c := st.out.own; c != nil && !c.gone {
		return c
	}
	return s.firstLocked()
}

// carriedLocked notes that st has sent n bytes, and finds it a connection of its own
// once that is much.
func (s *Session) carriedLocked(st *stream, n int) {
	l := &st.out.recent
	l.swept += n
	if st.out.own != nil || !s.extended || s.conf.connections < 2 {
		return
	}
	now := time.Now()
	if !l.at.IsZero() && !l.more { // on a slow path much takes long
		l.bytes = max(0, l.bytes-int(now.Sub(l.at).Seconds()*leak))
	}
	l.at, l.bytes, l.more = now, l.bytes+n, st.sendable() > 0
	limit := far
	if s.pulse.rtt > 0 && s.pulse.rtt < long && len(s.conns) < 2 {
		limit = near
	}
	if l.bytes < limit {
		return
	}
	if c := s.spareLocked(); c != nil {
		s.ownLocked(st, c)
		return
	}
	s.growLocked()
}

// hungry says whether a direction would like a connection of its own and has none.
func (st *stream) hungry() bool {
	return st.out.own == nil && st.out.recent.bytes >= far
}

// spareLocked is the connection beside the first that is nobody's, or the least used one
// if there will be no more; nil if it pays to wait.
func (s *Session) spareLocked() *conn {
	var best *conn
	for i := 1; i < len(s.conns); i++ {
		if c := s.conns[i]; best == nil || c.load < best.load {
			best = c
		}
	}
	if best != nil && best.load > 0 && len(s.conns) < s.conf.connections && time.Now().After(s.paths.retry) {
		return nil
	}
	return best
}

// ownLocked gives a direction a connection of its own.
func (s *Session) ownLocked(st *stream, c *conn) {
	s.disownLocked(st)
	st.out.own = c
	st.out.recent.swept = calm
	c.load++
	s.sweepSoonLocked()
}

func (s *Session) sweepSoonLocked() {
	if s.paths.sweepAt.IsZero() {
		s.paths.sweepAt = time.Now().Add(sweepEvery)
		s.scheduleLocked(s.paths.sweepAt)
	}
}

// disownLocked has a direction go on on the first connection.
func (s *Session) disownLocked(st *stream) {
	if c := st.out.own; c != nil {
		c.load--
		c.used = time.Now()
		st.out.own = nil
	}
	st.out.recent.bytes = 0
}

// growLocked sees that there will be connections for those that want them, unless some
// are under way.
func (s *Session) growLocked() {
	p, first := &s.paths, s.firstLocked()
	there := len(s.conns) - 1
	if first == nil || s.over != nil || p.dials > 0 || p.asked > there || time.Now().Before(p.retry) {
		return
	}
	need := 0
	for _, st := range s.streams {
		if st.out.own != nil || st.hungry() {
			need++
		}
	}
	switch need = min(max(need, p.wanted), s.conf.connections-1); {
	case need <= there:
	case s.dial == nil:
		p.asked, first.say.want = need, need
		first.kickLocked()
	default:
		for p.dials = need - there; need > there; need-- {
			s.work.Go(s.grow)
		}
	}
}

// settleLocked gives connections to those that want them.
func (s *Session) settleLocked() {
	for _, st := range s.streams {
		if !st.hungry() {
			continue
		}
		c := s.spareLocked()
		if c == nil {
			return
		}
		s.ownLocked(st, c)
		if st.queueLocked(c) {
			defer c.kickLocked()
		}
	}
}

// sweepLocked takes connections back from those that have calmed down, and drops those
// that nobody uses.
func (s *Session) sweepLocked(now time.Time) {
	p := &s.paths
	for _, st := range s.streams {
		if st.out.own != nil {
			if st.out.recent.swept < calm && st.sendable() == 0 {
				s.disownLocked(st)
			}
			st.out.recent.swept = 0
		}
	}
	if s.dial != nil {
		p.wanted = min(p.wanted, len(s.conns)-1)
		for _, c := range slices.Clone(s.conns[min(1, len(s.conns)):]) {
			if c.load == 0 && c.unacked == 0 && now.Sub(c.used) >= idleAfter && now.Sub(c.heard) >= idleAfter {
				p.wanted = max(0, p.wanted-1)
				s.lostLocked(c, errors.New("connection is not used any more"))
			}
		}
	}
	if len(s.conns) > 1 {
		s.sweepSoonLocked()
	}
}

// startLocked has the session go on on c as well, which nobody reads yet, in place of
// others if that was agreed.
func (s *Session) startLocked(c *conn, insteadOf uint64) {
	c.s = s
	s.work.Go(c.read)
	now := time.Now()
	c.heard, c.used, c.wrote = now, now, now
	parked := len(s.conns) == 0
	at := len(s.conns)
	replaced := s.replacedLocked(insteadOf)
	if len(replaced) > 0 {
		at = slices.Index(s.conns, replaced[0])
	}
	for _, old := range replaced {
		s.drainLocked(old)
	}
	s.conns = slices.Insert(s.conns, at, c)
	s.countPlacesLocked()
	local := c.tls.LocalAddr()
	if before := s.local.Swap(&local); s.dialing && before != nil && host(*before) != host(local) {
		s.pulse.forget() // what was learned of another path
		s.paths.lostRate = 0
	}
	c.heedLocked()
	if c == s.conns[0] {
		s.pulse.begin()
		if c.trip > 0 {
			s.pulse.rtt = c.trip // or more, until the answer to this tells
		}
		c.say.ping = true
	}
	if c.number > 0 {
		s.stats.Resumes++
	}
	s.paths.asked = min(s.paths.asked, len(s.conns)-1)
	if parked && !s.stats.Parked.IsZero() {
		s.log.Info("session resumed", "session", s.id.String(), "parked", now.Sub(s.stats.Parked), "attempt", c.number)
		s.stats.Parked, s.stats.Cause, s.paths.rejoin.spared = time.Time{}, nil, time.Time{}
		if s.tell != nil {
			s.tell(s.linkLocked())
		}
	}
	for _, old := range replaced { // now that c is there: this lets others in
		s.requeueLocked(old)
	}
	s.sayAllLocked()
	s.settleLocked()
	c.kickLocked()
	s.watchLocked(now)
}

// countPlacesLocked has as many places taken as there are connections beside the first.
func (s *Session) countPlacesLocked() {
	if s.conf.beside == nil || s.over != nil {
		return
	}
	n := max(0, len(s.conns)-1)
	s.conf.beside.give(s.placed - n)
	s.placed = n
}

// replacedLocked are the connections that another one takes the place of.
func (s *Session) replacedLocked(insteadOf uint64) (conns []*conn) {
	for _, c := range s.conns {
		if insteadOf == insteadOfAll || c.number == insteadOf {
			conns = append(conns, c)
		}
	}
	return conns
}

// host is the part of an address that stands for a path.
func host(a net.Addr) string {
	h, _, _ := net.SplitHostPort(a.String())
	return cmp.Or(h, a.String()) // an address in memory has no port
}

// sayAllLocked has said again, by every stream, what may have been lost, and sent what
// is to be sent.
func (s *Session) sayAllLocked() {
	for _, st := range s.streams {
		say := uint8(0)
		if st.in.next > 0 || st.in.state != recvOpen {
			say |= sayAck
		}
		if st.out.state == sendResetSent {
			say |= sayReset
		}
		if st.closed && st.in.state <= recvSizeKnown {
			say |= sayStop
		}
		if say |= st.say; say != 0 {
			st.speakerLocked(say)
		}
		if c := s.connFor(st); c != nil {
			st.queueLocked(c)
		}
	}
	for _, c := range slices.Clone(s.conns) {
		c.say.streams = true
		c.kickLocked()
	}
}

// drainLocked takes c out of the session, and reads what is on its way on it: the peer
// may have sent that before it knew of the connection that takes the place of c. The
// dialing end closes it. What it had under way the caller gives back.
func (s *Session) drainLocked(c *conn) {
	c.draining = true
	s.leaveLocked(c)
	if s.dialing {
		go c.part() // what it writes may have to wait, for a second
	} else {
		_ = c.tls.SetDeadline(time.Now().Add(2 * parting)) // if that fails c has failed
	}
}

// leaveLocked makes c none of the session's any more.
func (s *Session) leaveLocked(c *conn) {
	c.gone = true
	s.paths.last = c.tls.RemoteAddr()
	s.conns = slices.DeleteFunc(s.conns, func(o *conn) bool { return o == c })
	s.paths.lostRate = c.pace.rate
	for _, other := range s.conns {
		other.heedLocked()
	}
	s.paths.asked = min(s.paths.asked, max(0, len(s.conns)-1)) // or nobody would ask for another
}

// requeueLocked gives what was lost with c back to its streams, once nobody writes to c
// any more.
func (s *Session) requeueLocked(c *conn) {
	if s.over != nil || c.writing {
		return
	}
	c.little, c.bulk, c.control = queue{}, queue{}, nil
	for _, id := range c.done {
		if first := s.firstLocked(); first != nil && len(first.done) < maxDone {
			first.done = append(first.done, id)
		}
	}
	c.done = nil
	for _, st := range s.streams {
		if st.out.own == c {
			s.disownLocked(st)
		}
		if st.asked == c {
			st.asked = nil
		}
		st.lostLocked(c)
	}
	if len(s.conns) > 0 {
		s.sayAllLocked()
	}
}

// lostLocked goes on without c, which is lost because of err.
func (s *Session) lostLocked(c *conn, err error) {
	if c.gone || s.over != nil {
		c.gone = true
		c.abort()
		return
	}
	s.log.Debug("connection lost", "session", s.id.String(), "connection", c.number, "err", err)
	first := c == s.firstLocked()
	c.abort()
	s.leaveLocked(c)
	s.countPlacesLocked()
	switch next := s.firstLocked(); {
	case next != nil:
		if first {
			s.pulse.lesson = 0
			s.pulse.begin()
			next.say.ping = true
		}
	case !s.extended || s.conf.terms.window <= 0:
		s.failLocked(ended("connection lost", err))
	default:
		s.pulse.lost(time.Since(c.heard))
		s.parkLocked(c, err)
	}
	s.requeueLocked(c) // last: it may let others in
}

// parkLocked waits for another connection.
func (s *Session) parkLocked(c *conn, cause error) {
	now := time.Now()
	s.stats.Parked, s.stats.Cause = now, cause
	s.stats.Parks++
	s.log.Info("session parked", "session", s.id.String(), "err", cause)
	if s.tell != nil {
		s.tell(s.linkLocked())
	}
	s.scheduleLocked(now.Add(s.conf.terms.window))
	if s.dial == nil {
		return
	}
	r, moved := &s.paths.rejoin, s.stats.Received+s.stats.Sent
	if r.useless++; c.unacked > 0 || now.Sub(c.used) >= settled || moved != r.progress {
		r.useless = 0
	}
	r.progress = moved
	s.rejoinLocked(nil, insteadOfAll)
}
