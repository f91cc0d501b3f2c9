// Pulses: when to ask for a sign of life, and when there is none.

package overquic

import (
	"math/rand/v2"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// maxInterval is what the keepalive of a metered session can grow to, and
	// maxPromise what the accepting end believes.
	maxInterval = 10 * time.Minute
	maxPromise  = 24 * time.Hour
	// burst is how many packets a look have to come in for us to expect more.
	burst = 10
)

// A tempo is the times that go with a keepalive interval. Those of the default,
// 14 s, are given; a shorter interval has proportionally shorter ones, a longer
// one has the same.
type tempo struct {
	// grace (3 s) is how long a question may go without an answer before it is
	// asked again and another path is tried; after twice as long the path counts
	// as dead. It grows with the round trip, and is not under leastGrace.
	grace time.Duration
	// late (750 ms) is a delay of a look by which the process, not the path, is at
	// fault.
	late time.Duration
	// busy (1 s) is the time between two looks at a path that carries something,
	// asked (250 ms) at one that owes an answer.
	busy, asked time.Duration
	// retry (1 s) is the most that passes between two tries to get through, and
	// fresh (5 s) the least between two sockets for that.
	retry, fresh time.Duration
}

func tempoOf(interval time.Duration) tempo {
	u := min(max(interval, 280*time.Millisecond), tunnel.DefaultKeepalive) / 14
	g := max(3*u, leastGrace)
	return tempo{grace: g, late: g / 4, busy: u, asked: u / 4, retry: g / 3, fresh: max(5*g/3, leastFresh)}
}

const (
	// leastGrace is what a starved machine may need for an answer.
	leastGrace = time.Second
	// leastFresh leaves the server room for another address: it knows three that
	// it has yet to make sure of, and forgets one after 5 s.
	leastFresh = 2 * time.Second
)

// slowest bounds the time between two tries, which grows with how long they have
// been in vain.
const slowest = 10 * time.Second

// A look is what there is to see of a connection: how many packets it has sent
// and received, its round trip, and the latest sample of that, each of which is an
// answer to something that was sent.
type look struct {
	now            time.Time
	sent, received uint64
	rtt, sample    time.Duration
}

// unsampled is the sample on a path that has none.
const unsampled = 100 * time.Millisecond

// A step is what follows from a look.
type step struct {
	ask, kick, fresh bool // kick: try to get through; fresh: with another socket
	lost, back       bool // the path has become dead, has come alive
	over             bool // the detach window is over
	idle             bool // there is no need to look before next unless something happens
	next             time.Time
}

// An asker is the pulse of the dialing end. It has no clock.
type asker struct {
	interval time.Duration // silence after which to ask
	least    time.Duration // what interval starts from
	tempo    tempo         // of least
	metered  bool
	window   time.Duration // 0: the session ends with its path
	random   func() float64

	last    look
	planned time.Time
	heard   time.Time     // when something last came
	proved  time.Time     // when something of ours was last answered
	flowing bool          // the latest look saw a burst come in
	asked   time.Time     // when the oldest question without an answer was asked; zero if there is none
	silence time.Duration // that came before asked, if it was what made us ask
	again   bool          // the question has been asked again
	unit    time.Duration // grace with this question
	retry   time.Time     // when the next try is due
	freshAt time.Time     // when the latest socket of this silence was opened
	parked  time.Time     // since when the path is dead
	ceiling time.Duration // of interval
}

func newAsker(interval time.Duration, metered bool, window time.Duration) *asker {
	return &asker{
		interval: interval, least: interval, tempo: tempoOf(interval), metered: metered, window: window,
		random: rand.Float64, ceiling: max(maxInterval, interval),
	}
}

// atLeast makes the interval no shorter than d.
func (a *asker) atLeast(d time.Duration) {
	d = min(d, maxPromise)
	a.least, a.interval, a.ceiling = max(a.least, d), max(a.interval, d), max(a.ceiling, d)
	a.tempo = tempoOf(a.least)
}

// promise is within what time the peer will be asked something, if all is well.
func (a *asker) promise() time.Duration {
	if a.metered {
		return min(2*a.interval, a.ceiling)
	}
	return a.interval
}

// start is the first look.
func (a *asker) start(l look) {
	a.last, a.heard, a.proved, a.planned = l, l.now, l.now, l.now
}

// look says what to do after l.
func (a *asker) look(l look) step {
	if over := l.now.Sub(a.planned); over > a.tempo.late {
		// This process was stopped or starved, and what has come meanwhile may
		// not have been read: the silence is its own.
		a.heard, a.proved = a.heard.Add(over), a.proved.Add(over)
		if !a.asked.IsZero() {
			a.asked = a.asked.Add(over)
		}
		if !a.parked.IsZero() {
			a.parked = a.parked.Add(over)
		}
	}
	var s step
	received, sent := l.received-a.last.received, l.sent != a.last.sent
	answered := l.sample != a.last.sample && l.sample != unsampled
	starved := a.flowing && received < burst
	a.flowing, a.last = received >= burst, l
	if received > 0 {
		a.heard = l.now
	}
	switch {
	case answered:
		s = a.hear(l)
	case !a.asked.IsZero():
		s = a.wait(l)
	default:
		// Either something of ours has had no answer, or what was coming has
		// stopped: that may be its end, or the path's.
		s = a.quiet(l, sent && received == 0 || starved && !a.metered)
	}
	a.planned = s.next
	return s
}

// hear notes an answer.
func (a *asker) hear(l look) step {
	s := step{back: !a.parked.IsZero(), next: l.now.Add(a.tempo.busy)}
	switch {
	case a.asked.IsZero() || a.silence == 0 || !a.metered:
	case a.freshAt.IsZero():
		a.interval = min(2*a.interval, a.ceiling)
	default: // it took another socket
		a.fall()
	}
	a.heard, a.proved = l.now, l.now
	a.asked, a.parked, a.retry, a.freshAt, a.again = time.Time{}, time.Time{}, time.Time{}, time.Time{}, false
	return s
}

// quiet is for when no answer has come and none is owed yet.
func (a *asker) quiet(l look, doubt bool) step {
	due := a.proved.Add(a.interval)
	switch {
	case doubt:
		a.silence = 0
	case l.now.Before(due) && a.heard.Equal(l.now):
		return step{next: l.now.Add(min(a.tempo.busy, due.Sub(l.now)))}
	case l.now.Before(due):
		return step{idle: true, next: due}
	default:
		a.silence = 0
		if l.now.Sub(a.heard) >= a.interval {
			a.silence = a.interval
		}
	}
	a.asked, a.unit = l.now, max(a.tempo.grace, 2*l.rtt)
	return step{ask: true, next: l.now.Add(a.tempo.asked)}
}

// wait is for when an answer is owed.
func (a *asker) wait(l look) step {
	s := step{next: l.now.Add(a.tempo.asked)}
	waited := l.now.Sub(a.asked)
	if waited < a.unit {
		return s
	}
	if !a.again {
		a.again, s.ask = true, true
	}
	if waited >= 2*a.unit && a.parked.IsZero() {
		a.parked, s.lost = l.now, true
	}
	switch {
	case !a.parked.IsZero() && l.now.Sub(a.parked) >= a.window:
		s.over = true
	case a.window > 0 && !l.now.Before(a.retry):
		s.kick = true
		if a.freshAt.IsZero() || l.now.Sub(a.freshAt) >= a.tempo.fresh {
			s.fresh, a.freshAt = true, l.now
		}
		pause := min(max(a.tempo.retry, waited/60), slowest)
		a.retry = l.now.Add(time.Duration(a.random() * float64(pause)))
	}
	return s
}

// hurry makes the next look of one that waits try another socket.
func (a *asker) hurry() { a.retry, a.freshAt = time.Time{}, time.Time{} }

// fall makes the interval shorter than the silence that the path has not borne,
// and keeps it so.
func (a *asker) fall() {
	if a.metered {
		a.ceiling = max(a.interval/2, a.least)
		a.interval = a.ceiling
	}
}

// A hearer is the pulse of the accepting end, which asks nothing. It has no
// clock.
type hearer struct {
	promise time.Duration // within which the peer is heard
	window  time.Duration // 0: the session ends with its path
	deaf    time.Time     // until when nothing of ours reaches the peer, which says so

	received uint64
	planned  time.Time
	heard    time.Time
	parked   time.Time
}

// Of deafness the peer tells again every deafPause, and it is believed for deafFor.
const (
	deafPause = 5 * time.Second
	deafFor   = slowest + 2*time.Second
)

func (h *hearer) start(l look) {
	h.received, h.heard, h.planned = l.received, l.now, l.now
}

// look says what to do after l.
func (h *hearer) look(l look) step {
	t := tempoOf(h.promise)
	if over := l.now.Sub(h.planned); over > t.late {
		h.heard = h.heard.Add(over)
		if !h.parked.IsZero() {
			h.parked = h.parked.Add(over)
		}
	}
	var s step
	limit := h.promise + 2*max(t.grace, 2*l.rtt)
	switch {
	case l.now.Before(h.deaf) && (h.parked.IsZero() || l.now.Sub(h.parked) < h.window):
		s = step{lost: h.parked.IsZero(), over: h.window <= 0, next: l.now.Add(t.busy)}
		if s.lost {
			h.parked = l.now
		}
		h.received, h.heard = l.received, l.now
	case l.received != h.received && !l.now.Before(h.deaf):
		s = step{back: !h.parked.IsZero(), next: l.now.Add(2 * t.busy)}
		h.received, h.heard, h.parked = l.received, l.now, time.Time{}
	case !h.parked.IsZero():
		s = step{over: l.now.Sub(h.parked) >= h.window, next: l.now.Add(t.busy)}
	case l.now.Sub(h.heard) >= limit:
		h.parked = l.now
		s = step{lost: true, over: h.window <= 0, next: l.now.Add(t.busy)}
	default:
		s = step{idle: true, next: h.heard.Add(limit)}
	}
	h.planned = s.next
	return s
}
