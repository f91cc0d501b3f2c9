// The dialing end: a first transport, and another whenever one is lost.

package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// lowestBackoff and highestBackoff bound the wait between two attempts to
	// resume, after the first, which is made at once.
	lowestBackoff  = 100 * time.Millisecond
	highestBackoff = 5 * time.Second
	// localBackoff bounds it where this system or a router near says that there is
	// no way: that costs the peer nothing.
	localBackoff = time.Second
	// hedge is how long a connection may take to come about before another is
	// tried beside it: the path may have changed under the first, which then
	// waits for its own retransmissions. After hedges of them, once the peer has been
	// reached, the wait doubles with each: a path on which they all take long is not
	// to be filled with more. While it has not, another is tried each time, as TCP asks
	// ever more seldom, in place of the one that was tried so hedges ago: which has had
	// time for a name server that does not answer.
	hedge  = time.Second
	hedges = 3
	// resumeTimeout bounds what is said on a connection that is there, where that
	// came about at once. Elsewhere it may take three times as long as that did,
	// which was two round trips or more, so that one lost packet does not matter.
	resumeTimeout = 3 * time.Second
)

// errReplaced is why a transport ends that still worked.
var errReplaced = errors.New("another transport takes over")

// Dial opens a link on a connection that dial makes, and has dial make another
// whenever one is lost. Connections must be authenticated on both sides and end
// at the same Registry; ctx bounds the opening, and dial's own ctx each attempt.
// dial says by tunnel.Reached that the peer has answered, if that is before it
// returns. The caller owns the link, and the link its connections.
func Dial(ctx context.Context, dial func(context.Context) (net.Conn, error), c Config) (*Link, error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	c = c.withDefaults()
	m, err := converse(ctx, conn, message{kind: kindOpen, terms: c.terms()}, kindOpened)
	if err != nil {
		t := newTransport(conn)
		t.abort()
		return nil, fmt.Errorf("open link: %w", err)
	}
	c.Keepalive, c.Window = m.terms.keepalive, m.terms.window
	l := newLink(c.withDefaults(), m.terms.buffer, dial)
	l.id, l.park.secret = m.id, m.secret
	_ = l.start(newTransport(conn)) // nobody can have closed it yet
	return l, nil
}

// converse says m and hears the answer, which must be of one kind or a refusal.
// ctx and handshakeTimeout bound it. On error conn is still the caller's.
func converse(ctx context.Context, conn net.Conn, m message, kind uint8) (message, error) {
	var answer message
	err := within(ctx, conn, func() error {
		err := say(conn, m)
		if err == nil {
			answer, err = readMessage(conn)
		}
		return err
	})
	switch {
	case err != nil:
		return message{}, err
	case answer.kind == kindRefused:
		return message{}, refusal(answer)
	case answer.kind != kind:
		return message{}, fmt.Errorf("%w: message of kind %d", ErrProtocol, answer.kind)
	}
	return answer, nil
}

// within runs f, which reads and writes conn, for as long as ctx and
// handshakeTimeout let it, and leaves conn without deadlines.
func within(ctx context.Context, conn net.Conn, f func() error) error {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0)) // if it fails conn is broken, and f notices
	})
	err := f()
	if !stop() {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

func say(conn net.Conn, m message) error {
	_, err := conn.Write(m.encode())
	return err
}

// Move dials another transport while the present one still works, and changes
// over once it is there: for when the local address changes or a better way is
// known. Only the dialing end can. It waits for an attempt that is under way.
func (l *Link) Move(ctx context.Context) error {
	if l.dial == nil {
		return errors.New("move link: this end does not dial")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	if err := l.attempt(ctx, true); err != nil {
		return fmt.Errorf("move link: %w", err)
	}
	return nil
}

// redial brings a parked link back or gives it up: an attempt at once, then with
// a wait before each that is drawn from an interval that doubles, so that agents
// cut off together do not return together. If transports come but break at once,
// there is a wait before the first attempt as well. The window bounds it all:
// expire ends l.ctx. Once the user has closed the link, there is no wait and no
// attempt after the next.
func (l *Link) redial() {
	l.mu.Lock()
	useless := l.park.useless
	l.park.tries = 0
	l.mu.Unlock()
	bound := lowestBackoff
	for range useless {
		bound = min(2*bound, highestBackoff)
	}
	began := time.Now()
	for wait := useless > 1; ; wait = true {
		if wait {
			// What the attempt itself took counts.
			l.pause(time.Duration(rand.Float64()*float64(bound)) - time.Since(began))
			bound = min(2*bound, highestBackoff)
		}
		began = time.Now()
		err := l.attempt(l.ctx, false)
		if l.settle(err) {
			return
		}
		if tunnel.CodeOf(err) == tunnel.Unreachable {
			bound = min(bound, localBackoff)
		}
		l.conf.Log.Debug("cannot resume yet", "link", l.name(), "err", err)
	}
}

// pause waits, unless the link is over or closed before that.
func (l *Link) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.parting:
	case <-l.ctx.Done():
	}
}

// settle draws the consequence of an attempt. It says whether none is needed any
// more.
func (l *Link) settle(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.cur != nil || err == nil:
	case l.state.closed:
		l.finishLocked()
	case errors.Is(err, ErrProtocol):
		l.brokenLocked(err)
	case final(err):
		l.failLocked(err)
	}
	l.park.tries++
	if l.cur == nil && !l.state.over {
		return false
	}
	l.park.redialing = false
	return true
}

// attempt dials and resumes, one at a time. Unless it is to move the link, a
// link that has a transport is left alone.
func (l *Link) attempt(ctx context.Context, move bool) error {
	select {
	case l.dialing <- struct{}{}:
		defer func() { <-l.dialing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !move && l.Stats().Parked.IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, took, err := l.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(ctx, max(resumeTimeout, 3*took))
	defer cancel()
	t := newTransport(conn)
	if err = l.resumeOn(ctx, t); err != nil {
		t.abort()
	}
	return err
}

// A try is one dial of several.
type try struct {
	quit    context.CancelFunc
	dropped bool // another is tried in its place
	conn    net.Conn
	took    time.Duration
	err     error
}

// connect dials, and dials again beside it for each hedge that passes without a
// connection or an error. The first of either decides, and took so long; what the
// others come to is thrown away.
func (l *Link) connect(ctx context.Context) (conn net.Conn, took time.Duration, err error) {
	var reached atomic.Bool
	ctx, cancel := context.WithCancel(tunnel.OnReached(ctx, func() { reached.Store(true) }))
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	results := make(chan *try)
	var passing []*try // those that others take the place of; the oldest first
	under, begun, wait := 0, 0, hedge
	start := func() {
		one, quit := context.WithCancel(ctx)
		t := &try{quit: quit}
		under, begun = under+1, begun+1
		if begun > hedges+1 {
			passing = append(passing, t)
		}
		group.Go(func() {
			defer quit()
			began := time.Now()
			t.conn, t.err = l.dial(one)
			t.took = time.Since(began)
			results <- t
		})
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	start()
	for {
		select {
		case t := <-results:
			under--
			if t.dropped && t.err != nil {
				continue // because it was
			}
			cancel()
			for ; under > 0; under-- {
				if late := <-results; late.conn != nil {
					newTransport(late.conn).abort()
				}
			}
			return t.conn, t.took, t.err
		case <-timer.C:
			if len(passing) == hedges && !reached.Load() {
				passing[0].dropped = true
				passing[0].quit()
				passing = passing[1:]
			}
			if ctx.Err() == nil {
				start()
			}
			if begun > hedges && reached.Load() {
				wait *= 2
			}
			timer.Reset(wait)
		}
	}
}

// resumeOn resumes the link on t. On error t is still the caller's.
func (l *Link) resumeOn(ctx context.Context, t *transport) error {
	l.mu.Lock()
	l.park.attempt++
	l.park.moving = true
	m := message{
		kind: kindResume, id: l.id, secret: l.park.secret, attempt: l.park.attempt,
		received: l.in.received, ack: l.in.consumed,
	}
	l.mu.Unlock()
	m, err := converse(ctx, t.conn, m, kindResumed)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.park.moving = false
	if err != nil {
		return err
	}
	if l.state.over {
		return net.ErrClosed
	}
	l.park.secret = m.secret
	return l.resumeLocked(t, m.received, m.ack)
}
