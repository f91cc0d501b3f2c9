// The dialing end: a first connection, another whenever one is lost, and more for what
// is much.

package qmux

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// lowestBackoff and highestBackoff bound the wait between two attempts to go on,
	// after the first, which is made at once.
	lowestBackoff  = 100 * time.Millisecond
	highestBackoff = 5 * time.Second
	// localBackoff bounds it where this system or a router near says that there is no
	// way: that costs the peer nothing.
	localBackoff = time.Second
	// attemptTimeout bounds an attempt, joinTimeout what is said on a connection that
	// came about at once. Elsewhere it may take three times as long as that did.
	attemptTimeout = 30 * time.Second
	joinTimeout    = 3 * time.Second
	// hedge is how long a connection may take to come about before another is tried
	// beside it: the path may have changed under the first, which then waits for its own
	// retransmissions. Once the peer has been reached the wait doubles with each. While
	// it has not, another is tried each time in place of the one that was tried so hedges
	// ago, after the first hedges of them.
	hedge  = time.Second
	hedges = 3
	// No connection beside the first is made for growBackoff after one that could not be,
	// doubled up to mostBackoff.
	growBackoff = 5 * time.Second
	mostBackoff = time.Minute
	// settled is how long a connection must live to be worth the dialing, even if it
	// carries nothing.
	settled = time.Second
	// mostVain bounds by how often patience doubles after doubts that were vain.
	mostVain = 4
)

// A dialFunc makes a connection to the server. ctx bounds it.
type dialFunc func(ctx context.Context) (secured, error)

// rejoin is what a session needs to get another connection, or to be given one.
type rejoin struct {
	attempt uint64 // of the latest joining; of each number at most one succeeds
	// secret entitles to the next one. The accepting end has two after each: fresh
	// replaces secret once the peer has shown that it knows it or has sent anything on
	// the connection that it came with.
	secret, fresh secret
	unconfirmed   bool

	redialing bool // a goroutine looks for a connection
	useless   int  // connections in a row that broke at once and carried nothing
	progress  uint64
	vain      int // doubts in a row that were vain

	spared time.Time // until when, since the window was over while this process was stopped
}

// Transport is this package as a tunnel.Transport.
func Transport() tunnel.Transport {
	can := tunnel.Capabilities{Resume: true, Migrate: true, HalfClose: true, Reset: true}
	return tunnel.Transport{Name: Name, Can: can, Dial: Dial, Listen: Listen}
}

// Dial makes a session with the server at addr, HOST:PORT. ctx bounds the dialing only.
func Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	d, first, err := carrier.Dial(ctx, addr, ALPN, newBatch, o)
	if err == nil {
		again := func(ctx context.Context) (secured, error) {
			c, aerr := d.Again(ctx)
			if aerr != nil {
				return nil, aerr // no nil *tls.Conn in an interface
			}
			return c, nil
		}
		var s *Session
		if s, err = dialOn(ctx, first, again, o); err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("connect to %s: %w", addr, err)
}

// dialOn makes a session on a first connection, which it owns, and those that dial
// makes.
func dialOn(ctx context.Context, first secured, dial dialFunc, o tunnel.Options) (*Session, error) {
	c := newConn(first)
	conf := newConfig(o)
	mine := conf.parameters()
	if conf.terms.window > 0 {
		mine.session = &joining{kind: kindNew, terms: conf.terms, insteadOf: insteadOfNone}
	}
	theirs, answer, err := c.ask(ctx, mine)
	if err != nil {
		c.abort()
		return nil, err
	}
	var r rejoin
	var id sessionID
	if answer != nil {
		var told terms
		id, r.secret, told = answer.session()
		conf.terms = told.and(conf.terms)
	} else {
		theirs.session, conf.terms.window = nil, 0
	}
	s := newSession(conf, o, c.peer(), theirs, true)
	if s.extended {
		s.dial, s.id, s.paths.rejoin = dial, id, r
	} else if o.Link.Window() > 0 {
		s.log.Warn("session will end with its connection: the server does not resume", "server", c.tls.RemoteAddr().String())
	}
	s.mu.Lock()
	s.startLocked(c, insteadOfNone)
	s.mu.Unlock()
	return s, nil
}

// Move dials another connection while the present ones still work, and has it take
// their place: for when the local address changes or a better way is known.
func (s *Session) Move(ctx context.Context) error {
	if s.dial == nil {
		return errors.New("move session: it ends with its connection")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	return s.attempt(ctx, s.connect, insteadOfAll)
}

// rejoinLocked looks for another connection: beside one that is doubted, or if that is nil
// because there is none.
func (s *Session) rejoinLocked(doubted *conn, insteadOf uint64) {
	r := &s.paths.rejoin
	if r.redialing {
		return // who does so already goes on if there is none then
	}
	r.redialing = true
	useless := 0
	if doubted == nil {
		useless = r.useless
	}
	s.work.Go(func() { s.redial(doubted, insteadOf, useless) })
}

// redial makes a connection, and in a session that is parked then goes on until there is
// one or the window is over: an attempt at once, then with a wait before each that is
// drawn from an interval that doubles, so that agents cut off together do not return
// together. If connections come but break at once, there is a wait before the first
// attempt as well.
func (s *Session) redial(doubted *conn, insteadOf uint64, useless int) {
	bound := min(lowestBackoff<<min(useless, 6), highestBackoff)
	began := time.Now()
	for again := useless > 1; ; again = true {
		if again {
			// What the attempt itself took counts.
			select {
			case <-s.alive.Done():
			case <-time.After(time.Until(began.Add(time.Duration(rand.Float64() * float64(bound))))):
			}
			bound = min(2*bound, highestBackoff)
		}
		began = time.Now()
		err := s.attempt(s.alive, s.connect, insteadOf)
		if s.settle(doubted, err) {
			return
		}
		if tunnel.CodeOf(err) == tunnel.Unreachable {
			bound = min(bound, localBackoff)
		}
		s.log.Debug("cannot go on yet", "session", s.id.String(), "err", err)
		doubted, insteadOf = nil, insteadOfAll
	}
}

// settle draws the consequence of an attempt. It says whether none is needed any more.
func (s *Session) settle(doubted *conn, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.paths.rejoin
	switch {
	case err == nil:
		r.vain = 0
	case doubted != nil && !doubted.gone:
		r.vain = min(r.vain+1, mostVain)
		s.scheduleLocked(time.Now().Add(s.patienceLocked()))
	}
	if err != nil {
		s.pulse.lesson = 0 // something is wrong with the network
		if final(err) {
			s.failLocked(err)
		}
	}
	r.redialing = len(s.conns) == 0 && s.over == nil
	return !r.redialing
}

// doubtLocked goes on without, or beside, a connection on which what was sent is not
// acknowledged.
func (s *Session) doubtLocked(c *conn) {
	first, other := s.firstLocked(), s.answeringLocked(c)
	r := &s.paths.rejoin
	switch {
	case s.dial == nil:
		// It cannot dial; the peer may hear it on another connection.
		if other != nil {
			other.sayDoubtedLocked(c.number)
		}
	case c != first && other != nil:
		s.log.Debug("connection doubted", "session", s.id.String(), "connection", c.number)
		s.lostLocked(c, silence(time.Since(c.heard)))
		other.sayDoubtedLocked(c.number) // which no reset may reach
	case !r.redialing:
		if c == first {
			s.pulse.lost(time.Since(c.heard))
		}
		insteadOf := c.number
		if other == nil {
			insteadOf = insteadOfAll
		}
		if c != first && first.asked.IsZero() {
			first.askLocked() // if no other can be had, this one may still be there
		}
		s.log.Debug("connection doubted", "session", s.id.String(), "connection", c.number)
		s.rejoinLocked(c, insteadOf)
	}
}

// answeringLocked is a connection beside c on which the peer owes nothing, or something
// has come since it owes something on c; nil if there is none. At the dialing end it is
// one of the latter, so that what is there is not mixed up with what was there.
func (s *Session) answeringLocked(c *conn) *conn {
	for _, other := range s.conns {
		if other != c && (other.heard.After(c.asked) || s.dial == nil && other.asked.IsZero()) {
			return other
		}
	}
	return nil
}

func (c *conn) sayDoubtedLocked(number uint64) {
	if len(c.say.doubted) < tunnel.MaxConnections && !slices.Contains(c.say.doubted, number) {
		c.say.doubted = append(c.say.doubted, number)
	}
	c.kickLocked()
}

// toldOfDoubtLocked takes the peer's PATH_DOUBTED, which came on c. The accepting end
// drops that connection: the dialing one has. If this end has no such connection any
// more, the peer learns so.
func (s *Session) toldOfDoubtLocked(c *conn, number uint64) {
	i := slices.IndexFunc(s.conns, func(o *conn) bool { return o.number == number })
	switch {
	case i >= 0 && s.conns[i] == c: // which speaks for itself
	case i >= 0 && s.dialing:
		s.doubtLocked(s.conns[i])
	case i >= 0:
		s.lostLocked(s.conns[i], silence(time.Since(s.conns[i].heard)))
	case s.dialing:
		c.sayDoubtedLocked(number)
	}
}

// attempt makes a connection by dial, and joins when it is its turn.
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
	case s.token <- struct{}{}:
		defer func() { <-s.token }()
	case <-ctx.Done():
		c.abort()
		return context.Cause(ctx)
	}
	ctx, cancel = context.WithTimeout(ctx, max(joinTimeout, 3*took))
	defer cancel()
	if err = s.joinOn(ctx, c, insteadOf); err != nil {
		c.abort()
	}
	return err
}

// grow makes a connection beside the first.
func (s *Session) grow() {
	err := s.attempt(s.alive, s.dial, insteadOfNone)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.paths
	p.dials--
	if err == nil {
		p.fails = 0
		s.growLocked()
		return
	}
	pause := min(growBackoff<<min(p.fails, 8), mostBackoff)
	p.fails++
	p.retry = time.Now().Add(pause)
	s.log.Debug("cannot add a connection", "session", s.id.String(), "retry", pause, "err", err)
}

// connect dials, and dials again beside it for each hedge that passes without a
// connection or an error. The first of either decides; what the others come to is
// thrown away.
func (s *Session) connect(ctx context.Context) (secured, error) {
	var reached atomic.Bool
	ctx, cancel := context.WithCancel(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectDone: func(_, _ string, err error) {
		if err == nil {
			reached.Store(true) // the server, or a proxy: what still takes time is not for want of a path
		}
	}}))
	defer cancel()
	type result struct {
		conn  secured
		err   error
		stale bool // given up, since others are tried
	}
	results := make(chan result)
	under, begun, wait := 0, 0, hedge
	start := func() {
		one, quit := context.WithCancel(ctx)
		if under, begun = under+1, begun+1; begun > hedges+1 {
			time.AfterFunc(hedges*hedge, func() {
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
			if under--; r.stale {
				continue
			}
			cancel()
			for ; under > 0; under-- {
				if late := <-results; late.conn != nil {
					_ = late.conn.NetConn().Close() // of no use
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
