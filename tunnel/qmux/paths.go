// Paths: which connection a stream uses, when connections are added and dropped, and what
// happens to the streams of one that is lost.

package qmux

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"slices"
	"time"
)

const (
	// A stream that has sent bulkThreshold bytes, less loadDecay for each second, is
	// assigned a connection of its own. On a path with a round trip below shortPathRTT the
	// first of them takes bulkThresholdShortPath: there bulk delays others less than a
	// handshake costs. On other paths a stream is assigned one at once if the first
	// connection's socket is full.
	bulkThreshold          = 64 << 10
	bulkThresholdShortPath = 256 << 10
	loadDecay              = 16 << 10
	shortPathRTT           = 5 * time.Millisecond

	// A stream that has had less than keepConnBytes to send in sweepInterval, with what was in
	// flight, loses its connection.
	sweepInterval = 2 * time.Second
	keepConnBytes = 16 << 10
	// idleTimeout is how long a connection beside the first is kept that no stream owns.
	idleTimeout = 30 * time.Second
)

// paths is the state of adding and replacing connections.
type paths struct {
	lastLostAddr net.Addr  // remote address of the latest connection that was lost,
	lostRate     float64   // and its pace's rate; 0: unknown
	wanted       int       // connections beside the first that the peer has asked for
	askedFor     int       // that this end has asked for,
	askedAt      time.Time // and when
	dialing      int       // attempts under way
	retryAt      time.Time // none is added before that
	besideDoubts int       // connections beside the first that were dropped as silent, one soon after the other,
	doubtedAt    time.Time // and when the latest was
	addingUntil  time.Time // until then bulk waits for a connection that is being made; zero: none is
	dialFailures int
	sweepAt      time.Time
	heldUntil    time.Time  // when the next stream is sent that is held (holdStuckLocked); zero: none is
	parkLoggedAt time.Time  // when a park was last logged at level info,
	parkLevel    slog.Level // and the level of the latest
	rejoin       rejoin
}

// A load is how much a stream sends.
type load struct {
	bytes      int // sent, less loadDecay for each second
	at         time.Time
	sinceSweep int  // bytes sent since the last sweep
	backlogged bool // it had more to send at that time
	wantsConn  bool // it is to have a connection of its own
}

// firstLocked is the connection that carries control frames and small data; nil if the
// session has no connection.
func (s *Session) firstLocked() *conn {
	if len(s.conns) == 0 {
		return nil
	}
	return s.conns[0]
}

// connFor is the connection for st's data; nil if the session has none.
func (s *Session) connFor(st *stream) *conn {
	if c := st.out.ownConn; c != nil && !c.detached {
		return c
	}
	return s.firstLocked()
}

// noteSentLocked notes that st has sent n bytes, and assigns it a connection of its own
// above the threshold.
func (s *Session) noteSentLocked(st *stream, n int) {
	l := &st.out.load
	l.sinceSweep += n
	if st.out.ownConn != nil || !s.addsConns() || len(s.conns) == 0 {
		return
	}
	now := time.Now()
	if !l.at.IsZero() && !l.backlogged { // a stream that waits for a slow path does not decay
		l.bytes = max(0, l.bytes-int(now.Sub(l.at).Seconds()*loadDecay))
	}
	l.at, l.bytes, l.backlogged = now, l.bytes+n, st.sendable() > 0
	limit := bulkThreshold
	if s.firstLocked().delaysBulkLocked() {
		limit = 0
	} else if len(s.conns) < 2 {
		limit = s.firstTakesLocked()
	}
	if l.bytes >= limit {
		s.wantConnLocked(st)
	}
}

// firstTakesLocked is how much bulk is sent on the only connection before another one is there.
func (s *Session) firstTakesLocked() int {
	if s.keepalive.rtt > 0 && s.keepalive.rtt < shortPathRTT {
		return bulkThresholdShortPath
	}
	return bulkThreshold
}

// addsConns says whether the session may use several connections.
func (s *Session) addsConns() bool { return s.extended && s.conf.connections > 1 }

// wantConnLocked assigns the stream a connection of its own, now or once there is one.
func (s *Session) wantConnLocked(st *stream) {
	st.out.load.wantsConn = true
	if c := s.pickConnLocked(); c != nil {
		s.assignLocked(st, c)
		return
	}
	s.addConnsLocked()
}

// delaysBulkLocked says whether c is the first connection, and so slow that a stream's bulk
// is better off on one of its own from the start.
func (c *conn) delaysBulkLocked() bool {
	s := c.s
	return c.full && c == s.firstLocked() && s.addsConns() && s.keepalive.rtt >= shortPathRTT
}

// pickConnLocked is the connection beside the first with the fewest owners. It is nil if
// all have owners and another connection may still be added.
func (s *Session) pickConnLocked() *conn {
	var best *conn
	for i := 1; i < len(s.conns); i++ {
		if c := s.conns[i]; best == nil || c.owners < best.owners {
			best = c
		}
	}
	if best != nil && best.owners > 0 && len(s.conns) < s.conf.connections && time.Now().After(s.paths.retryAt) {
		return nil
	}
	return best
}

// assignLocked makes c the stream's own connection.
func (s *Session) assignLocked(st *stream, c *conn) {
	s.unassignLocked(st)
	st.out.ownConn = c
	st.out.load.sinceSweep, st.out.load.wantsConn = keepConnBytes, false
	c.owners++
	s.scheduleSweepLocked()
}

func (s *Session) scheduleSweepLocked() {
	if s.paths.sweepAt.IsZero() {
		s.paths.sweepAt = time.Now().Add(sweepInterval)
		s.scheduleLocked(s.paths.sweepAt)
	}
}

// unassignLocked moves the stream to the first connection.
func (s *Session) unassignLocked(st *stream) {
	if c := st.out.ownConn; c != nil {
		c.owners--
		c.lastOwned = time.Now()
		st.out.ownConn = nil
	}
	st.out.load.bytes, st.out.load.wantsConn = 0, false
}

// addConnsLocked dials, or asks the dialing end for, as many connections as streams want,
// unless that is under way.
func (s *Session) addConnsLocked() {
	p, first := &s.paths, s.firstLocked()
	there, now := len(s.conns)-1, time.Now()
	asked := p.askedFor > there
	if first == nil || s.err != nil || p.dialing > 0 || asked && now.Sub(p.askedAt) < minGrowBackoff || now.Before(p.retryAt) {
		return
	}
	if useful := first.lastOwned.Add(minUsefulLife); p.rejoin.shortLived > 1 && now.Before(useful) {
		s.scheduleLocked(useful) // what the streams send may be what breaks connections
		return
	}
	need := 0
	for _, st := range s.streams {
		if st.out.ownConn != nil || st.out.load.wantsConn {
			need++
		}
	}
	switch need = min(max(need, p.wanted), s.conf.connections-1); {
	case need <= there:
	case s.dial == nil:
		p.askedFor, p.askedAt, first.control.wantConns = need, now, need
		if !asked { // else bulk has waited in vain
			s.holdBulkLocked()
		}
		first.startWritingLocked()
	default:
		s.holdBulkLocked()
		for p.dialing = need - there; need > there; need-- {
			s.goroutines.Go(s.addConn)
		}
	}
}

// assignWaitingLocked assigns connections to the streams that want one.
func (s *Session) assignWaitingLocked() {
	for _, st := range s.streams {
		if !st.out.load.wantsConn {
			continue
		}
		c := s.pickConnLocked()
		if c == nil {
			return
		}
		s.assignLocked(st, c)
		if st.queueLocked(c) {
			defer c.startWritingLocked()
		}
	}
}

// sweepLocked takes connections from streams that send little, and drops idle ones.
func (s *Session) sweepLocked(now time.Time) {
	p := &s.paths
	for _, st := range s.streams {
		if st.out.ownConn != nil {
			if st.out.load.sinceSweep+int(st.out.next-st.out.base) < keepConnBytes && st.sendable() == 0 {
				s.unassignLocked(st)
			}
			st.out.load.sinceSweep = 0
		}
	}
	if s.dial != nil {
		p.wanted = min(p.wanted, len(s.conns)-1)
		for _, c := range slices.Clone(s.conns[min(1, len(s.conns)):]) {
			if c.owners == 0 && c.inFlight == 0 && now.Sub(c.lastOwned) >= idleTimeout && now.Sub(c.lastReceived) >= idleTimeout {
				p.wanted = max(0, p.wanted-1)
				s.lostLocked(c, errors.New("connection is not used any more"))
			}
		}
	}
	if len(s.conns) > 1 {
		s.scheduleSweepLocked()
	}
}

// attachLocked adds c to the session, in place of the connections that insteadOf names, and
// starts its reader.
func (s *Session) attachLocked(c *conn, insteadOf uint64) {
	c.s, c.batch.joined = s, true
	s.goroutines.Go(c.read)
	now := time.Now()
	c.lastReceived, c.lastOwned, c.lastSent = now, now, now
	parked := len(s.conns) == 0
	at := len(s.conns)
	replaced := s.replacedLocked(insteadOf)
	if len(replaced) > 0 {
		at = slices.Index(s.conns, replaced[0])
	}
	if s.dial == nil && insteadOf == insteadOfAll && len(replaced) > 0 {
		s.holdStuckLocked(replaced...) // the peer has lost them, or moves the session: it sends the same
	}
	for _, old := range replaced {
		s.drainLocked(old)
	}
	s.conns = slices.Insert(s.conns, at, c)
	s.countBesideLocked()
	if len(s.conns) > 1 {
		s.scheduleSweepLocked() // no stream of this end may use it
	}
	local := c.tls.LocalAddr()
	if before := s.local.Swap(&local); s.dialing && before != nil && host(*before) != host(local) {
		s.keepalive.reset() // it was learned on another path
		s.paths.lostRate = 0
	}
	c.inheritPaceLocked()
	if c == s.conns[0] {
		s.paths.dialFailures, s.paths.retryAt = 0, time.Time{} // the server can be reached again
		s.keepalive.restart()
		if c.joinRTT > 0 {
			s.keepalive.usualRTT = 0 // this may be another path
			s.keepalive.measured(c.joinRTT)
		}
		c.control.ping = true
	}
	if c.number > 0 && (c == s.conns[0] || len(replaced) > 0) { // it is not one more, beside others
		s.stats.Resumes++
	}
	s.paths.askedFor = min(s.paths.askedFor, len(s.conns)-1)
	if parked && !s.stats.Parked.IsZero() {
		s.log.Log(s.alive, s.paths.parkLevel, "session resumed", "session", s.id.String(), "parked", now.Sub(s.stats.Parked), "attempt", c.number)
		s.parked.Store(nil)
		s.stats.Parked, s.stats.Cause, s.stats.Elsewhere, s.paths.rejoin.graceUntil = time.Time{}, nil, false, time.Time{}
		s.onChange(s.linkLocked())
	}
	for _, old := range replaced { // after c was added: it may unlock the session
		s.requeueLocked(old)
	}
	s.resendControlLocked()
	s.assignWaitingLocked()
	c.startWritingLocked()
	if s.paths.dialing <= 1 && s.paths.askedFor <= len(s.conns)-1 { // c is the last one
		s.releaseBulkLocked()
	}
	s.watchLocked(now)
}

// countBesideLocked tells conf.beside how many connections beside the first there are.
func (s *Session) countBesideLocked() {
	if s.err != nil {
		return // failLocked has returned them
	}
	n := max(0, len(s.conns)-1)
	s.conf.beside.give(s.besideCounted - n)
	s.besideCounted = n
}

// replacedLocked is the connections that insteadOf names.
func (s *Session) replacedLocked(insteadOf uint64) (conns []*conn) {
	for _, c := range s.conns {
		if insteadOf == insteadOfAll || c.number == insteadOf {
			conns = append(conns, c)
		}
	}
	return conns
}

// host is an address without its port: it identifies the path.
func host(a net.Addr) string {
	h, _, _ := net.SplitHostPort(a.String())
	return cmp.Or(h, a.String()) // an address in memory has no port
}

// resendControlLocked queues, for every stream, the control frames that may have been lost,
// and its data.
func (s *Session) resendControlLocked() {
	for _, st := range s.streams {
		say := uint8(0)
		if st.in.next > 0 || st.in.state != recvOpen {
			say |= pendingAck
		}
		if st.out.state == sendResetSent {
			say |= pendingReset
		}
		if st.closed && st.in.state <= recvSizeKnown {
			say |= pendingStop
		}
		if say |= st.control; say != 0 {
			st.noteControlLocked(say)
		}
		if c := s.connFor(st); c != nil {
			st.queueLocked(c)
		}
	}
	for _, c := range slices.Clone(s.conns) {
		c.control.maxStreams = true
		c.startWritingLocked()
	}
}

// drainLocked detaches c, which another connection has replaced. It is still read: the peer
// may have sent data on it before it knew of the other one. The dialing end closes it. The
// caller requeues what was in flight on it. A write in progress ends at once, even if the
// socket is full: until then nothing is requeued.
func (s *Session) drainLocked(c *conn) {
	c.draining = true
	s.detachLocked(c)
	_ = c.tls.SetDeadline(time.Now().Add(2 * lingerTimeout)) // if that fails, c is broken
	switch {
	case c.writing:
		_ = c.tls.SetWriteDeadline(time.Unix(1, 0)) // likewise
	case s.dialing:
		go c.closeWrite() // it may block, for lingerTimeout
	}
}

// detachLocked removes c from the session's connections.
func (s *Session) detachLocked(c *conn) {
	c.detached = true
	s.paths.lastLostAddr = c.tls.RemoteAddr()
	s.conns = slices.DeleteFunc(s.conns, func(o *conn) bool { return o == c })
	if s.paths.lostRate = c.pace.rate; !c.owedSince.IsZero() { // it was measured before the silence
		s.paths.lostRate = min(c.pace.rate, minAhead/maxQueueDelay.Seconds())
	}
	for _, other := range s.conns {
		other.inheritPaceLocked()
		if !c.owedSince.IsZero() {
			other.distrustLocked()
		}
	}
	s.paths.askedFor = min(s.paths.askedFor, max(0, len(s.conns)-1)) // so that another one can be asked for
}

// requeueLocked returns what was in flight on c to its streams, once no write to c is in
// progress.
func (s *Session) requeueLocked(c *conn) {
	if s.err != nil || c.writing {
		return
	}
	c.small, c.bulk, c.controlStreams = nil, nil, nil
	for _, id := range c.streamDone {
		if first := s.firstLocked(); first != nil && len(first.streamDone) < maxStreamDone {
			first.streamDone = append(first.streamDone, id)
		}
	}
	c.streamDone = nil
	for _, st := range s.streams {
		if st.out.ownConn == c {
			s.unassignLocked(st)
		}
		if st.controlOn == c {
			st.controlOn = nil
		}
		st.lostLocked(c)
	}
	if len(s.conns) > 0 {
		s.resendControlLocked()
	}
}

// lostLocked handles the loss of c because of err.
func (s *Session) lostLocked(c *conn, err error) {
	if c.detached || s.err != nil {
		c.detached = true
		c.abort()
		return
	}
	s.log.Debug("connection lost", "session", s.id.String(), "connection", c.number, "err", err)
	first := c == s.firstLocked()
	c.abort()
	s.detachLocked(c)
	s.countBesideLocked()
	switch next := s.firstLocked(); {
	case next != nil:
		if first {
			s.keepalive.lostAfter = 0
			s.keepalive.restart()
			next.control.ping = true
		}
	case !s.extended || s.conf.terms.window <= 0:
		s.failLocked(sessionEnded("connection lost", err))
	default:
		s.keepalive.lost(time.Since(c.lastReceived))
		s.parkLocked(c, err)
	}
	s.requeueLocked(c) // last: it may unlock the session
}

// logParkLocked logs that the session is parked. A peer that resumes and is cut off again as fast
// as it can does not fill the log: at level info it is said once a second, of what lasts later.
func (s *Session) logParkLocked(now time.Time) {
	p := &s.paths
	if p.parkLevel = slog.LevelDebug; now.Sub(p.parkLoggedAt) >= time.Second {
		p.parkLevel, p.parkLoggedAt = slog.LevelInfo, now
	} else {
		s.scheduleLocked(p.parkLoggedAt.Add(time.Second))
	}
	s.log.Log(s.alive, p.parkLevel, "session parked", "session", s.id.String(), "err", s.stats.Cause)
}

// logRedialLocked logs why an attempt to resume has failed, at level warn the first one after the
// park was logged at level info.
func (s *Session) logRedialLocked(err error) {
	p, level := &s.paths, slog.LevelDebug
	if p.parkLevel == slog.LevelInfo && !p.rejoin.told {
		level, p.rejoin.told = slog.LevelWarn, true
	}
	s.log.Log(s.alive, level, "cannot resume the session yet, trying again", "session", s.id.String(), "err", err)
}

// parkLocked starts the detach window, and at the dialing end the attempts to resume.
func (s *Session) parkLocked(c *conn, cause error) {
	now := time.Now()
	s.parked.Store(&now)
	s.stats.Parked, s.stats.Cause = now, cause
	s.stats.Parks++
	s.paths.rejoin.told = false
	s.logParkLocked(now)
	s.onChange(s.linkLocked())
	s.scheduleLocked(now.Add(s.conf.terms.window))
	s.holdStuckLocked(c)
	if s.dial == nil {
		return
	}
	r := &s.paths.rejoin
	if r.shortLived++; s.moved != r.movedAtLoss || now.Sub(c.lastOwned) >= minUsefulLife {
		r.shortLived = 0
	}
	r.movedAtLoss = s.moved
	s.rejoinLocked(nil, insteadOfAll)
}
