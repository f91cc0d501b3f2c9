// Parking: transports lost, taken and fenced off.

package link

import (
	"crypto/subtle"
	"fmt"
	"net"
	"time"
)

const (
	// settled is how long a transport must live to be worth the dialing, even if
	// it carries nothing.
	settled = time.Second
	// asleep is how late the end of the window may be noticed before this process
	// must have been stopped: then it takes until grace is over for a resumption
	// that may be waiting at its door.
	asleep = time.Second
	grace  = 10 * time.Second
)

// parking is what a link needs to change transports; the link's mu guards it.
type parking struct {
	since     time.Time // zero while there is a transport
	cause     error     // why the last transport was lost
	redialing bool      // a goroutine is at it
	moving    bool      // the peer may be about to drop the transport for another
	told      bool      // somebody has been told that there is none

	tries  int  // attempts to resume that failed since
	spared bool // the window was over while this process was stopped

	// attempt numbers resumptions; of each number at most one succeeds.
	attempt uint64
	// secret entitles to the next resumption. The accepting end has two after
	// each: fresh replaces secret once the peer has shown that it knows it or has
	// sent anything on the transport that it came with.
	secret, fresh secret
	unconfirmed   bool

	// useless counts transports in a row that broke at once and carried nothing.
	useless  int
	silent   time.Duration // for so long, and therefore given up soon; zero if not
	taken    time.Time     // when the transport was
	progress uint64        // at that time

	lingered uint64 // progress when the wait for the end was last extended
	graces   int    // how often it was

	tick, expiry, linger *time.Timer // nil until first needed
}

func (p *parking) stop() {
	for _, t := range []*time.Timer{p.tick, p.expiry, p.linger} {
		if t != nil {
			t.Stop()
		}
	}
}

// takeLocked makes t the transport, from l.out.sent on. There must be none.
func (l *Link) takeLocked(t *transport) {
	if l.dial != nil && l.last != nil && host(l.last.conn.LocalAddr()) != host(t.conn.LocalAddr()) {
		l.pulse.forget()
	}
	l.cur, l.last = t, t
	if t.batch != nil {
		t.batch.cork()
	}
	l.park.since, l.park.cause, l.stats.Parked = time.Time{}, nil, time.Time{}
	l.park.spared, l.park.moving, l.park.silent = false, false, 0
	l.park.taken, l.park.progress = time.Now(), l.progressLocked()
	if l.park.expiry != nil {
		l.park.expiry.Stop()
	}
	now := l.now()
	l.pulse.take(now)
	if wait := l.pulse.planned - now; l.park.tick == nil {
		l.park.tick = time.AfterFunc(wait, l.keepalive)
	} else {
		l.park.tick.Reset(wait)
	}
	// The first frame tells the peer that we have its answer.
	l.out.ping, l.out.pong, l.out.bye, l.out.deaf = true, false, false, false
	l.wakeLocked()
	if l.park.told && l.tell != nil {
		l.park.told = false
		l.tell(l.statsLocked())
	}
	if l.state.closed {
		l.pumpLocked()
	}
}

// host is the part of an address that stands for a path.
func host(a net.Addr) string {
	h, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return h
}

// lostLocked parks the link if t is its transport.
func (l *Link) lostLocked(t *transport, err error) {
	if t != l.cur {
		return
	}
	if !l.park.moving {
		l.pulse.lost(l.now())
	}
	if l.state.eof {
		l.finishLocked() // there is nothing to come back for
		return
	}
	if l.state.closed && l.dial != nil {
		l.lingerLocked(lastTry)
	}
	if l.progressLocked() == l.park.progress && time.Since(l.park.taken) < settled {
		l.park.useless++
	} else {
		l.park.useless = 0
	}
	l.dropTransportLocked()
	l.parkLocked(err)
}

// progressLocked grows with every byte that gets across.
func (l *Link) progressLocked() uint64 { return l.in.received + l.out.ring.base }

// dropTransportLocked fences the transport off: whatever is still being written
// to it fails, and whatever is still read from it does not count.
func (l *Link) dropTransportLocked() {
	if l.cur == nil {
		return
	}
	l.cur.abort()
	l.cur = nil
	if l.park.tick != nil {
		l.park.tick.Stop()
	}
}

// parkLocked starts the wait for another transport.
func (l *Link) parkLocked(cause error) {
	l.park.since, l.park.cause = time.Now(), cause
	l.stats.Parked = l.park.since
	if !l.park.moving && !l.state.closed {
		l.stats.Parks++
		l.conf.Log.Info("link parked", "link", l.name(), "err", cause)
		if l.tell != nil {
			l.park.told = true
			l.tell(l.statsLocked())
		}
	}
	if l.park.expiry == nil {
		l.park.expiry = time.AfterFunc(l.conf.Window, l.expire)
	} else {
		l.park.expiry.Reset(l.conf.Window)
	}
	l.news.Broadcast()
	if l.dial != nil && !l.park.redialing {
		l.park.redialing = true
		l.work.Go(l.redial)
	}
}

// expire gives the link up if it has been parked for the whole window.
func (l *Link) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur != nil || l.state.over || l.park.since.IsZero() {
		return
	}
	switch late := time.Since(l.park.since) - l.conf.Window; {
	case late < 0: // it was parked again meanwhile
	case late > asleep && !l.park.spared:
		l.park.spared = true
		l.park.expiry.Reset(grace)
	default:
		l.failLocked(expired(l.park.cause))
	}
}

// brokenLocked gives the link up because the peer makes no sense: no other
// transport would mend that.
func (l *Link) brokenLocked(err error) {
	l.failLocked(nonsense(err))
}

// keepalive looks after the transport once an interval.
func (l *Link) keepalive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur == nil {
		return
	}
	if l.park.silent > 0 {
		l.lostLocked(l.cur, silence(l.park.silent))
		return
	}
	now := l.now()
	b := l.pulse.tick(now, l.in.received+l.out.high)
	if b.dead > 0 {
		// The peer may hear us all the same. It gets a moment to.
		l.park.silent, l.out.deaf = b.dead, true
		l.todo.Signal()
		l.park.tick.Reset(l.pulse.retry() / 16)
		return
	}
	if b.ask {
		l.out.ping = true
		l.todo.Signal()
	}
	if b.quiet {
		// A user that does not read must not look like a dead peer, at either end:
		// whatever the peer asks, it asks no sooner than this.
		l.pumpLocked()
	}
	l.park.tick.Reset(b.next - now)
}

// oweLocked tells the pulse whether bytes wait to be acknowledged.
func (l *Link) oweLocked() {
	owing := l.out.ring.end > l.out.ring.base
	if owing == l.pulse.owing {
		return
	}
	now := l.now()
	if next, sooner := l.pulse.owe(now, owing); sooner && l.cur != nil {
		l.park.tick.Reset(next - now)
	}
}

// resumeLocked takes t, on which the peer has said how far it got.
func (l *Link) resumeLocked(t *transport, received, ack uint64) error {
	if received > l.out.high || ack > received {
		return fmt.Errorf("%w: it has %d bytes of %d", ErrProtocol, received, l.out.high)
	}
	if l.dial != nil && received < l.out.ring.base {
		// The accepting end says it after fencing, when nothing can have changed
		// since; the dialing end's word may be older than its acknowledgements.
		return fmt.Errorf("%w: it has %d bytes and acknowledged %d", ErrProtocol, received, l.out.ring.base)
	}
	l.dropTransportLocked()
	if l.dial != nil && l.park.tries == 0 {
		l.pulse.learn(l.now()) // the first attempt: nothing is wrong with the network
	}
	// What the peer says may be older than what it has acknowledged since on the
	// transport before.
	l.out.sent = max(received, l.out.ring.base)
	l.ackedLocked(ack)
	l.stats.Resumes++
	l.stats.Replayed += l.out.high - l.out.sent
	l.conf.Log.Info("link resumed", "link", l.name(),
		"attempt", l.park.attempt, "parked", l.parkedFor(), "replay", l.out.high-l.out.sent)
	l.takeLocked(t)
	return nil
}

func (l *Link) parkedFor() time.Duration {
	if l.park.since.IsZero() {
		return 0
	}
	return time.Since(l.park.since)
}

// fence answers a peer that wants to resume: if it may, the transport so far is
// dropped, so that what the answer says stays true until resume.
func (l *Link) fence(m message, fresh secret) (message, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := subtle.ConstantTimeCompare(m.secret[:], l.park.secret[:]) == 1
	newer := l.park.unconfirmed && subtle.ConstantTimeCompare(m.secret[:], l.park.fresh[:]) == 1
	switch {
	case l.state.over:
		return message{}, unknown(nil)
	case !known && !newer:
		return message{}, unknown(errSecret)
	case m.attempt <= l.park.attempt:
		return message{}, late()
	}
	if newer {
		l.park.secret = l.park.fresh
	}
	l.park.attempt, l.park.fresh, l.park.unconfirmed = m.attempt, fresh, true
	if l.cur != nil {
		l.park.moving = true
		l.dropTransportLocked()
		l.parkLocked(errReplaced)
	}
	return message{kind: kindResumed, secret: fresh, received: l.in.received, ack: l.in.consumed}, nil
}

// resume takes t after fence, unless a later attempt was fenced meanwhile.
func (l *Link) resume(t *transport, m message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.over {
		return unknown(nil)
	}
	if l.park.attempt != m.attempt {
		return late()
	}
	err := l.resumeLocked(t, m.received, m.ack)
	if err != nil {
		l.brokenLocked(err)
	}
	return err
}

// confirmLocked forgets the secret that led to the transport: the peer has the
// new one.
func (l *Link) confirmLocked() {
	if l.park.unconfirmed {
		l.park.secret, l.park.unconfirmed = l.park.fresh, false
	}
}
