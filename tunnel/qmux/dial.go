// The dialing end: the first connection, replacements of lost ones, and more for bulk.

package qmux

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// minBackoff and maxBackoff bound the wait between two attempts to resume. The first
	// attempt is made at once.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
	// localBackoff bounds it while the network is unreachable: such an attempt costs the
	// peer nothing.
	localBackoff = time.Second
	// elsewhereBackoff is the least bound of the wait after another server was reached: that pays
	// for the handshake.
	elsewhereBackoff = 500 * time.Millisecond
	// attemptTimeout bounds an attempt. Joining, once there is a connection, may take
	// joinTimeout, or three times as long as connecting took.
	attemptTimeout = 30 * time.Second
	joinTimeout    = 3 * time.Second
	// After hedgeDelay without a connection another one is dialed beside it: the path may
	// have changed, and the first one would wait for its retransmissions. Once a TCP
	// connection is there the delay doubles with each dial. Until then each dial beyond
	// maxHedges takes the place of the oldest one.
	hedgeDelay = time.Second
	maxHedges  = 3
	// After a failed attempt to add a connection there is none for minGrowBackoff, which
	// doubles up to maxGrowBackoff.
	minGrowBackoff = 5 * time.Second
	maxGrowBackoff = time.Minute
	// minUsefulLife is how long a connection must live to count as a success, even if it
	// carries nothing.
	minUsefulLife = time.Second
	// maxFalseDoubts bounds how often false doubts double the acknowledgement timeout.
	maxFalseDoubts = 4
)

// A dialFunc makes a TLS connection to the server. ctx bounds it.
type dialFunc func(ctx context.Context) (secured, error)

// rejoin is the state of resuming: secrets, attempts and back-off.
type rejoin struct {
	attempt uint64 // number of the latest attempt; each number succeeds at most once
	// secret authorizes the next attempt. After each one the accepting end knows two:
	// fresh replaces secret once the peer has used it or has sent anything on the
	// connection that carried it.
	secret, fresh secret
	unconfirmed   bool

	redialing   bool // redial runs
	told        bool // the log has an attempt of this park at level warn
	shortLived  int  // connections in a row that broke within minUsefulLife and moved nothing
	movedAtLoss uint64
	retryAt     time.Time // no connection is replaced because of a doubt before that
	falseDoubts int       // doubts in a row about connections that were alive, since a ping was answered soon

	graceUntil time.Time // end of the grace after the window has passed while this process was stopped
}

// Transport is this package as a tunnel.Transport.
func Transport() tunnel.Transport {
	can := tunnel.Capabilities{Resume: true, Migrate: true, HalfClose: true, Reset: true}
	return tunnel.Transport{Name: Name, Can: can, Dial: Dial, Listen: Listen}
}

// Dial makes a session with the server at addr, HOST:PORT. ctx bounds the dialing only.
func Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	begin := func(ctx context.Context, d *carrier.Dialer, first *tls.Conn) (tunnel.Session, error) {
		s, err := dialOn(ctx, first, func(ctx context.Context) (secured, error) { return d.Again(ctx) }, o)
		if err != nil {
			return nil, err
		}
		s.tellMoved = d.Moved
		return s, nil
	}
	return carrier.Dial(ctx, addr, ALPN, newBatch, o, begin)
}

// dialOn makes a session on a first connection, which it owns. dial makes further ones.
func dialOn(ctx context.Context, first secured, dial dialFunc, o tunnel.Options) (*Session, error) {
	c := newConn(first)
	conf := newConfig(o)
	mine := conf.parameters()
	if conf.terms.window > 0 {
		mine.session = &joining{kind: kindNew, terms: conf.terms, insteadOf: insteadOfNone}
	}
	theirs, answer, err := c.requestSession(ctx, mine)
	if err != nil {
		c.giveUp(err)
		return nil, err
	}
	var r rejoin
	var id sessionID
	if answer != nil {
		var told terms
		id, r.secret, told = answer.session()
		conf.terms = told.and(conf.terms)
	} else {
		conf.withoutTerms(theirs)
	}
	s := newSession(conf, o, c.peer(), theirs, true)
	if s.extended {
		s.dial, s.id, s.paths.rejoin = dial, id, r
	} else if o.Link.Window() > 0 {
		s.log.Warn("session will end with its connection: the server does not resume", "server", c.tls.RemoteAddr().String())
	}
	s.mu.Lock()
	s.attachLocked(c, insteadOfNone)
	s.mu.Unlock()
	return s, nil
}

// Move dials another connection while the present ones still work, and replaces them with
// it: for when the local address changes or a better path is known. Where that reaches another
// server it dials again, until ctx is done.
func (s *Session) Move(ctx context.Context) error {
	if s.dial == nil {
		return errors.New("move session: it ends with its connection")
	}
	if s.tellMoved != nil {
		s.tellMoved()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	for pause := elsewhereBackoff; ; pause = min(2*pause, maxBackoff) {
		err := s.attempt(ctx, s.connect, insteadOfAll)
		if !s.elsewhere(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// rejoinLocked starts redial, to replace a connection that is doubted or, if that is nil,
// to resume a parked session.
func (s *Session) rejoinLocked(doubted *conn, insteadOf uint64) {
	r := &s.paths.rejoin
	if r.redialing {
		return // that redial also resumes the session if it is parked then
	}
	r.redialing = true
	useless := 0
	if doubted == nil {
		useless = r.shortLived
	}
	s.goroutines.Go(func() { s.redial(doubted, insteadOf, useless) })
}

// redial makes one attempt and, if the session is parked after that, more until one succeeds
// or the detach window ends. Before each of them it waits for a random part of an interval
// that doubles, so that agents that were cut off together do not return together. After
// several short-lived connections it waits before the first attempt, too.
func (s *Session) redial(doubted *conn, insteadOf uint64, useless int) {
	bound := min(minBackoff<<min(useless, 6), maxBackoff)
	began := time.Now()
	for again := useless > 1; ; again = true {
		if again {
			// The time of the attempt itself counts.
			select {
			case <-s.alive.Done():
			case <-time.After(time.Until(began.Add(time.Duration(rand.Float64() * float64(bound))))):
			}
			bound = min(2*bound, maxBackoff)
		}
		began = time.Now()
		connect := func(ctx context.Context) (secured, error) { return s.connectInsteadOf(ctx, doubted, began) }
		err := s.attempt(s.alive, connect, insteadOf)
		if s.redialed(doubted, began, err) {
			return
		}
		switch {
		case tunnel.CodeOf(err) == tunnel.Unreachable:
			bound = min(bound, localBackoff)
		case s.elsewhere(err):
			bound = max(bound, elsewhereBackoff)
		}
		doubted, insteadOf = nil, insteadOfAll
	}
}

// connectInsteadOf is connect. If the doubted connection, unless that is nil, has brought something
// since the attempt began, the new one is not needed: to replay on it what is in flight on the
// other would cost a path that is only slow more than it has.
func (s *Session) connectInsteadOf(ctx context.Context, doubted *conn, began time.Time) (secured, error) {
	t, err := s.connect(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && doubted != nil && !doubted.detached && doubted.lastReceived.After(began) {
		_ = t.NetConn().Close() // nothing was said on it
		return nil, errAnswers
	}
	return t, err
}

// errAnswers means that a doubt was false.
var errAnswers = errors.New("the doubted connection answers")

// redialed handles the result of an attempt that began at a time. It returns whether redial
// ends. A doubt was false if the connection has brought something meanwhile.
func (s *Session) redialed(doubted *conn, began time.Time, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.paths.rejoin
	switch {
	case err == nil:
		r.falseDoubts, r.retryAt = 0, time.Time{}
	case doubted != nil && !doubted.detached:
		if doubted.lastReceived.After(began) {
			r.falseDoubts = min(r.falseDoubts+1, maxFalseDoubts)
		}
		r.retryAt = time.Now().Add(s.ackTimeoutLocked())
		s.scheduleLocked(r.retryAt)
	}
	if err != nil {
		s.keepalive.lostAfter = 0 // the network is at fault, not a middlebox
		if s.endsByLocked(err, doubted) {
			s.failLocked(err)
		}
		s.stats.Elsewhere = len(s.conns) == 0 && (s.stats.Elsewhere || s.elsewhere(err))
	}
	if r.redialing = len(s.conns) == 0 && s.err == nil; r.redialing && err != nil {
		s.logRedialLocked(err)
	}
	return !r.redialing
}

// endsByLocked says whether the session ends by the error of an attempt to replace doubted, or to
// resume. A load balancer may have led the connection to a server that is not the session's.
func (s *Session) endsByLocked(err error, doubted *conn) bool {
	e, ok := errors.AsType[*sessionError](err)
	switch {
	case !ok || e.Code != tunnel.Lost:
		return permanent(err)
	case e.server == "" || s.peer.server == "": // it may be another one
		return doubted == nil || doubted.detached
	default:
		return !s.elsewhere(e)
	}
}

// elsewhere says whether err is that a server has no such session, and is another one than the
// session's.
func (s *Session) elsewhere(err error) bool {
	e, ok := errors.AsType[*sessionError](err)
	return ok && e.Code == tunnel.Lost && e.server != "" && s.peer.server != "" && e.server != s.peer.server
}

// doubtLocked replaces a connection on which data is not acknowledged, or drops it if
// another one works.
func (s *Session) doubtLocked(c *conn) {
	first, other := s.firstLocked(), s.answeringLocked(c)
	r := &s.paths.rejoin
	switch {
	case s.dial == nil:
		// It cannot dial: it tells the peer on another connection.
		if other != nil {
			other.sendDoubtedLocked(c.number)
		}
	case c != first && other != nil:
		s.log.Debug("connection doubted", "session", s.id.String(), "connection", c.number)
		s.paths.besideDoubtedLocked(time.Now())
		s.lostLocked(c, silentError(time.Since(c.lastReceived)))
		other.sendDoubtedLocked(c.number) // a reset of c may not reach the peer
	case !r.redialing && !time.Now().Before(r.retryAt):
		if c == first {
			s.keepalive.lost(time.Since(c.lastReceived))
		}
		insteadOf := c.number
		if other == nil {
			insteadOf = insteadOfAll
		}
		if c != first && first.owedSince.IsZero() {
			first.pingLocked() // it may turn out to work
		}
		s.log.Debug("connection doubted", "session", s.id.String(), "connection", c.number)
		s.rejoinLocked(c, insteadOf)
	}
}

// besideDoubtedLocked puts off the next connection beside the first. On a thin path connections
// compete: each new one would replay what is in flight, and add a handshake.
func (p *paths) besideDoubtedLocked(now time.Time) {
	if now.Sub(p.doubtedAt) > 2*maxGrowBackoff {
		p.besideDoubts = 0
	}
	pause := min(minGrowBackoff<<min(p.besideDoubts, 8), maxGrowBackoff)
	p.besideDoubts++
	p.doubtedAt = now
	if at := now.Add(pause); at.After(p.retryAt) {
		p.retryAt = at
	}
}

// answeringLocked is a connection beside c that works; nil if there is none. It works if a
// record was received on it since the peer owes an answer on c; at the accepting end
// also if the peer owes nothing on it.
func (s *Session) answeringLocked(c *conn) *conn {
	for _, other := range s.conns {
		if other != c && (other.lastReceived.After(c.owedSince) || s.dial == nil && other.owedSince.IsZero()) {
			return other
		}
	}
	return nil
}

func (c *conn) sendDoubtedLocked(number uint64) {
	if len(c.control.doubted) < tunnel.MaxConnections && !slices.Contains(c.control.doubted, number) {
		c.control.doubted = append(c.control.doubted, number)
	}
	c.startWritingLocked()
}

// pathDoubtedLocked handles a PATH_DOUBTED that was received on c. The accepting end drops
// the connection, since the dialing end has. A dialing end that has no such connection
// any more answers that.
func (s *Session) pathDoubtedLocked(c *conn, number uint64) {
	i := slices.IndexFunc(s.conns, func(o *conn) bool { return o.number == number })
	switch {
	case i >= 0 && s.conns[i] == c: // c works: the frame came on it
	case i >= 0 && s.dialing:
		s.doubtLocked(s.conns[i])
	case i >= 0:
		s.lostLocked(s.conns[i], silentError(time.Since(s.conns[i].lastReceived)))
	case s.dialing:
		c.sendDoubtedLocked(number)
	}
}

// attempt makes a connection with dial, and joins the session on it.
func (s *Session) attempt(ctx context.Context, dial dialFunc, insteadOf uint64) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	began := time.Now()
	t, err := dial(ctx)
	if err != nil {
		return err
	}
	took := time.Since(began)
	c := newConn(t)
	select {
	case s.joining <- struct{}{}:
		defer func() { <-s.joining }()
	case <-ctx.Done():
		c.abort()
		return context.Cause(ctx)
	}
	ctx, cancel = context.WithTimeout(ctx, max(joinTimeout, 3*took))
	defer cancel()
	if err = s.joinOn(ctx, c, insteadOf); err != nil {
		c.giveUp(err)
	}
	return err
}

// addConn adds a connection beside the first.
func (s *Session) addConn() {
	err := s.attempt(s.alive, s.dial, insteadOfNone)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.paths
	p.dialing--
	if err == nil {
		p.dialFailures = 0
		s.addConnsLocked()
		return
	}
	pause := min(minGrowBackoff<<min(p.dialFailures, 8), maxGrowBackoff)
	if p.dialing == 0 { // those that fail together count once
		p.dialFailures++
	}
	p.retryAt = time.Now().Add(pause)
	s.releaseBulkLocked()
	s.log.Debug("cannot add a connection", "session", s.id.String(), "retry", pause, "err", err)
}

// connect dials, and dials again beside it after each hedgeDelay without a result. The first
// result counts; later connections are closed.
func (s *Session) connect(ctx context.Context) (secured, error) {
	var reached atomic.Bool
	ctx, cancel := context.WithCancel(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectDone: func(network, _ string, err error) {
		if err == nil && strings.HasPrefix(network, "tcp") {
			reached.Store(true) // the server or a proxy, and no name server: there is a path
		}
	}}))
	defer cancel()
	type result struct {
		conn  secured
		err   error
		stale bool // given up in favor of later dials
	}
	results := make(chan result)
	underway, started, wait := 0, 0, hedgeDelay
	start := func() {
		one, quit := context.WithCancel(ctx)
		if underway, started = underway+1, started+1; started > maxHedges+1 {
			time.AfterFunc(maxHedges*hedgeDelay, func() {
				if !reached.Load() {
					quit()
				}
			})
		}
		go func() { // joined below
			defer quit()
			c, err := s.dial(one)
			results <- result{c, err, err != nil && one.Err() != nil && ctx.Err() == nil}
		}()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	start()
	for {
		select {
		case r := <-results:
			if underway--; r.stale {
				continue
			}
			cancel()
			for ; underway > 0; underway-- {
				if late := <-results; late.err == nil {
					_ = late.conn.NetConn().Close() // not needed
				}
			}
			return r.conn, r.err
		case <-timer.C:
			if ctx.Err() == nil {
				start()
			}
			if reached.Load() {
				wait *= 2
			}
			timer.Reset(wait)
		}
	}
}
