// Parking: transports lost, taken and fenced off.

package link

import (
	"crypto/subtle"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// silentTicks is how many keepalive intervals in a row without a sign of life
// make a transport dead.
const silentTicks = 3

// settled is how long a transport must live to be worth the dialing, even if it
// carries nothing.
const settled = time.Second

// parking is what a link needs to change transports; the link's mu guards it.
type parking struct {
	since     time.Time // zero while there is a transport
	cause     error     // why the last transport was lost
	redialing bool      // a goroutine is at it
	moving    bool      // the peer may be about to drop the transport for another

	// attempt numbers resumptions; of each number at most one succeeds.
	attempt uint64
	// secret entitles to the next resumption. The accepting end has two after
	// each: fresh replaces secret once the peer has shown that it knows it or has
	// sent anything on the transport that it came with.
	secret, fresh secret
	unconfirmed   bool

	// useless counts transports in a row that broke at once and carried nothing.
	useless  int
	taken    time.Time // when the transport was
	progress uint64    // at that time

	silent               int         // ticks
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
	l.cur, l.last = t, t
	if t.batch != nil {
		t.batch.cork()
	}
	l.park.since, l.park.cause, l.stats.Parked = time.Time{}, nil, time.Time{}
	l.park.silent, l.park.moving, l.in.heard = 0, false, true
	l.park.taken, l.park.progress = time.Now(), l.progressLocked()
	if l.park.expiry != nil {
		l.park.expiry.Stop()
	}
	if l.park.tick == nil {
		l.park.tick = time.AfterFunc(l.conf.Keepalive, l.keepalive)
	} else {
		l.park.tick.Reset(l.conf.Keepalive)
	}
	// The first frame tells the peer that we have its answer.
	l.out.ack, l.out.ping = true, false
	l.wakeLocked()
}

// lostLocked parks the link if t is its transport.
func (l *Link) lostLocked(t *transport, err error) {
	if t != l.cur {
		return
	}
	if l.state.closed {
		l.finishLocked()
		return
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
	if !l.park.moving {
		l.stats.Parks++
		l.conf.Log.Info("link parked", "link", l.name(), "err", cause)
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
	if l.cur == nil && !l.park.since.IsZero() && time.Since(l.park.since) >= l.conf.Window {
		l.failLocked(expired(l.park.cause))
	}
}

// brokenLocked gives the link up because the peer makes no sense: no other
// transport would mend that.
func (l *Link) brokenLocked(err error) {
	l.failLocked(&Error{Code: tunnel.Internal, Text: "peer cannot be trusted", cause: err})
}

// keepalive looks after the transport once an interval.
func (l *Link) keepalive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.cur
	if t == nil {
		return
	}
	if l.in.heard {
		l.in.heard, l.park.silent = false, 0
	} else {
		l.park.silent++
	}
	switch {
	case l.park.silent >= silentTicks:
		l.lostLocked(t, errSilent)
		return
	case l.park.silent > 0:
		l.out.ping = true
		l.todo.Signal()
	}
	l.pumpLocked() // a user that does not read must not look like a dead peer
	l.park.tick.Reset(l.conf.Keepalive)
}

// resumeLocked takes t, on which the peer has said how far it got.
func (l *Link) resumeLocked(t *transport, received, ack uint64) error {
	if received > l.out.high || ack > received {
		return fmt.Errorf("%w: it has %d bytes of %d", ErrProtocol, received, l.out.high)
	}
	l.dropTransportLocked()
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
	case l.state.over || l.state.closed:
		return message{}, unknown()
	case !known && !newer:
		return message{}, unknown()
	case m.attempt <= l.park.attempt:
		return message{}, &Error{Code: tunnel.Replaced, Text: "a later attempt came first"}
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
	if l.state.over || l.state.closed {
		return unknown()
	}
	if l.park.attempt != m.attempt {
		return &Error{Code: tunnel.Replaced, Text: "a later attempt came first"}
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
