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
	// retry (1 s) is the most that passes between two tries to get through, but
	// for the one after a new socket, and between a try and a knock; and fresh (5 s)
	// the least between two sockets for that.
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

// slowest bounds the time between two tries, which grows with how long, and with
// how many sockets, they have been in vain.
const slowest = 10 * time.Second

// A look is what there is to see of a connection: how many packets it has sent and
// received, how many bytes it has sent, its round trip, and the latest sample of
// that, each of which is an answer to something that was sent.
type look struct {
	now                   time.Time
	sent, received, bytes uint64
	rtt, sample           time.Duration
}

// unsampled is the sample on a path that has none.
const unsampled = 100 * time.Millisecond

// A step is what follows from a look.
type step struct {
	ask, kick, fresh bool // kick: try to get through; fresh: with another socket
	knock            bool // try once more in the least way
	lost, back       bool // the path has become dead, has come alive
	over             bool // the detach window is over
	mute             bool // nothing is to be sent to where the peer is now
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
	listens time.Duration // how long an answer will be waited for after the next one
	tried   bool          // there was a try to which nothing has come back yet
	kicked  time.Time     // when the latest try was
	knocked time.Time     // when the latest knock after it was, or else the try
	slow    time.Duration // what an answer may have taken, if that is not known better
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
		s = a.wait(l, received > 0)
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
	a.slow = 0
	if a.tried && a.knocked.After(a.kicked) {
		// Either the knock has been answered, and nothing else of what was sent with
		// the try has arrived; the library, which takes the answer for one to the try,
		// believes in a long round trip. Or the round trip is that long.
		s.kick, a.slow = true, l.now.Sub(a.kicked)
	}
	switch {
	case a.asked.IsZero() || a.silence == 0 || !a.metered:
	case a.freshAt.IsZero():
		a.interval = min(2*a.interval, a.ceiling)
	default: // it took another socket
		a.fall()
	}
	a.heard, a.proved = l.now, l.now
	a.asked, a.parked, a.retry, a.freshAt, a.again = time.Time{}, time.Time{}, time.Time{}, time.Time{}, false
	a.listens, a.tried = 0, false
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
	a.asked, a.unit = l.now, max(a.tempo.grace, 2*l.rtt, 2*a.slow)
	return step{ask: true, next: l.now.Add(a.tempo.asked)}
}

// wait is for when an answer is owed; something else may have come.
func (a *asker) wait(l look, came bool) step {
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
		pause := time.Duration(a.random() * float64(min(max(a.tempo.retry, waited/60), slowest)))
		if a.freshAt.IsZero() || l.now.Sub(a.freshAt) >= a.tempo.fresh {
			s.fresh, a.freshAt = true, l.now
			// Each try makes the library forget what it has sent, and with that the
			// answer to it. A path that is not dead but has become slow is found
			// out by trying nothing for longer than it takes.
			a.listens = min(max(2*a.listens, a.tempo.retry), slowest)
			pause = max(pause, a.listens)
		}
		a.retry = l.now.Add(pause)
		a.tried, a.kicked, a.knocked = true, l.now, l.now
	case a.tried && came:
		// The server sees another address and makes sure of it (RFC 9000, 9.3);
		// until it is sure it answers to the old one, where nobody is. What we have
		// to say to that counts against the congestion window, which the try has
		// filled. Beginning anew lets it out first. It gets all the time that the try
		// had: something does come through.
		s.kick, a.tried = true, false
		a.retry = l.now.Add(a.listens)
	case a.tried && !a.metered && l.now.Sub(a.knocked) >= a.tempo.retry-a.tempo.asked:
		s.knock, a.knocked = true, l.now
	}
	return s
}

// hurry makes the next look of one that waits try another socket.
func (a *asker) hurry() { a.retry, a.freshAt, a.listens = time.Time{}, time.Time{}, 0 }

// fall makes the interval shorter than the silence that the path has not borne,
// and keeps it so.
func (a *asker) fall() {
	if a.metered {
		a.ceiling = max(a.interval/2, a.least)
		a.interval = a.ceiling
	}
}
