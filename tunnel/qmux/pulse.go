// Pulse: how long a session may be silent, and how it learns that.

package qmux

import "time"

const (
	// longestSilence bounds what a metered link allows itself, and what a peer
	// may announce.
	longestSilence = 10 * time.Minute
	// longestRetry bounds how much later than the dialing end the accepting one asks.
	longestRetry = 3 * time.Second
)

// A pulse is how long the first connection may be silent before the peer is asked for a
// sign of life. Questions of the dialing end tell the other how long the next silence may
// last. So an idle link costs one exchange an interval, whoever counts.
//
// A metered link doubles the interval whenever a silence of that length turns out to have
// done no harm. If a connection did not survive one although the next could be had at
// once, a middlebox must have forgotten it: the interval goes back to half of that, and
// stays below until the path is another.
type pulse struct {
	metered  bool
	base     time.Duration // the interval agreed upon
	interval time.Duration // that holds; base, unless the link is metered
	rtt      time.Duration // the latest round trip; zero before the first
	sampled  uint64        // bytes moved when it was last asked for

	trial   bool          // the open question has ended a silence of an interval
	lesson  time.Duration // the silence in which the connection was lost; zero if none
	ceiling time.Duration // a silence that the path does not bear; zero if none
}

// retry is how much longer the accepting end waits than the dialing one, which so has its
// turn.
func (p *pulse) retry() time.Duration { return min(p.base/5, longestRetry) }

// patience is the time between the dialing end's question, or when it should have come,
// and the end. Where the round trip is long it is more.
func (p *pulse) patience() time.Duration {
	return max(2*p.retry(), min(4*p.rtt, 4*p.retry()))
}

// allowed is how long the next silence may last if the open question is answered.
func (p *pulse) allowed() time.Duration {
	next := max(p.interval, min(2*p.interval, longestSilence))
	if !p.trial || p.ceiling > 0 && next >= p.ceiling {
		return p.interval
	}
	return next
}

// told takes note of the dialing end's question.
func (p *pulse) told(allowed, rtt time.Duration) {
	p.interval = min(max(allowed, p.base), longestSilence)
	if rtt > 0 {
		p.rtt = rtt
	}
}

// answered takes note of an answer.
func (p *pulse) answered() { p.interval, p.trial = p.allowed(), false }

// lost notes in what silence the connection was lost.
func (p *pulse) lost(silent time.Duration) {
	p.lesson = 0
	if p.metered && silent >= p.base {
		p.lesson = silent
		if p.trial {
			p.lesson = p.interval // the rest was waiting for the answer
		}
	}
}

// begin starts over on another connection. There is a lesson in the loss of the one
// before, if nothing was wrong with the network.
func (p *pulse) begin() {
	if p.lesson > 0 {
		p.ceiling = p.lesson
		p.interval = max(p.lesson/2, p.base)
	}
	p.lesson, p.trial = 0, false
}

// forget starts over on another path.
func (p *pulse) forget() { p.interval, p.lesson, p.ceiling, p.rtt = p.base, 0, 0, 0 }
