// Pulse: when to ask the peer for a sign of life, and when it is dead.

package qmux

import "time"

const (
	// longestSilence bounds what a metered link allows itself, and what a peer
	// may announce.
	longestSilence = 10 * time.Minute
	// longestRetry bounds the wait for an answer before asking again.
	longestRetry = 3 * time.Second
	// starved is how late this process may come to its own appointments before
	// it no longer blames the peer for the silence.
	starved = 100 * time.Millisecond
	// lessonTerm is how long a link remembers what its path does not bear.
	lessonTerm = 24 * time.Hour
	// sampleEvery is how many bytes move, on a link that is never silent, before
	// the round trip is measured again.
	sampleEvery = 1 << 20
)

// A pulse decides when to ask the peer for a sign of life and when it is dead.
// It has no clock; times are counted from the link's birth.
//
// The dialing end asks after an interval of silence, and again a retry later;
// two retries after the first question it gives up. The questions tell the
// accepting end how long the next silence may last, so that this end need not
// ask: it does so only once the dialing end has missed its turn. So an idle
// link costs one exchange an interval, whoever counts. Where the round trip is
// long both are more patient.
//
// A metered link doubles the interval whenever a silence of that length turns
// out to have done no harm. If the transport did not survive one although the
// next could be had at once, a middlebox must have forgotten it: the interval
// goes back to what was good and stays there for a day. While bytes wait to be
// acknowledged the interval is what was agreed upon.
type pulse struct {
	dialing, metered bool
	base             time.Duration // the interval agreed upon
	interval         time.Duration // that holds; base, unless the link is metered

	heard   time.Duration // the latest sign of life
	owing   bool          // bytes wait to be acknowledged,
	since   time.Duration // for so long
	excused time.Duration // until when this process has only itself to blame
	asks    int           // questions in the present silence
	planned time.Duration // when tick is due

	timing  bool          // an answer will tell the round trip
	sent    time.Duration // since then
	open    int           // questions without an answer
	rtt     time.Duration // the latest; zero before the first
	sampled uint64        // bytes moved when it was last asked for

	trial   time.Duration // the silence that the open question ended; zero if none
	good    time.Duration // the longest silence known to have done no harm
	lesson  time.Duration // the silence in which the transport was lost; zero if none
	ceiling time.Duration // a silence that the path does not bear; zero if none
	until   time.Duration // when the ceiling is forgotten
}

func newPulse(keepalive time.Duration, metered, dialing bool) pulse {
	return pulse{dialing: dialing, metered: metered && dialing, base: keepalive, interval: keepalive}
}

// A beat is what time demands.
type beat struct {
	ask   bool          // the peer for a sign of life
	quiet bool          // nothing was heard for as long as was agreed upon
	dead  time.Duration // how long the peer was silent, if that is too long
	next  time.Duration // when tick must be called again
}

// take starts over on a new transport.
func (p *pulse) take(now time.Duration) {
	p.heard, p.excused, p.since = now, now, now
	p.asks, p.open, p.trial, p.timing, p.lesson = 0, 0, 0, false, 0
	p.planned = now + p.base
}

// hear notes a sign of life.
func (p *pulse) hear(now time.Duration) { p.heard, p.asks = now, 0 }

// owe notes whether bytes wait to be acknowledged. It says whether tick must be
// called earlier than planned, and when.
func (p *pulse) owe(now time.Duration, owing bool) (time.Duration, bool) {
	if owing == p.owing {
		return 0, false
	}
	p.owing, p.since = owing, now
	if due := p.due(); owing && due < p.planned {
		p.planned = due
		return due, true
	}
	return 0, false
}

func (p *pulse) retry() time.Duration { return min(p.base/5, longestRetry) }

// patience is the time between the first question, or when it should have come,
// and the end.
func (p *pulse) patience() time.Duration {
	return max(2*p.retry(), min(4*p.rtt, 4*p.retry()))
}

// due is when the silence has lasted for an interval.
func (p *pulse) due() time.Duration {
	at := p.heard + p.interval
	if p.owing {
		at = min(at, max(p.heard, p.since)+p.base)
	}
	return max(at, p.excused)
}

// question is when the next one is due, unless there were enough.
func (p *pulse) question() (time.Duration, bool) {
	if p.dialing {
		return p.due() + time.Duration(p.asks)*p.retry(), p.asks < 2
	}
	return p.due() + p.retry(), p.asks < 1
}

// tick says what time demands; moved is how many bytes the link has carried.
func (p *pulse) tick(now time.Duration, moved uint64) beat {
	if late := now - p.planned; late > max(p.retry()/4, starved) && now > p.due() {
		// This process was stopped or starved, and what the peer said meanwhile
		// has not been read yet: ask first.
		p.excused, p.asks = now, 0
	}
	b := beat{quiet: now >= p.heard+p.base}
	if dead := p.due() + p.patience(); now >= dead {
		b.dead = now - p.heard
		return b
	}
	at, more := p.question()
	switch {
	case more && now >= at:
		if p.metered && p.asks == 0 && now-p.heard >= p.interval {
			p.trial = p.interval
		}
		p.asks++
		b.ask = true
		at, more = p.question()
	case p.dialing && !b.quiet && moved-p.sampled >= sampleEvery:
		p.sampled, b.ask = moved, true
	}
	b.next = p.due() + p.patience()
	if more {
		b.next = min(b.next, at)
	}
	if !b.quiet {
		b.next = min(b.next, p.heard+p.base)
	}
	p.planned = b.next
	return b
}

// asking is what a question says: how long the next silence may last, and the
// round trip.
func (p *pulse) asking(now time.Duration) (allowed, rtt time.Duration) {
	if p.open == 0 {
		p.sent, p.timing = now, true
	}
	p.open++
	if p.trial > 0 {
		return p.longer(now, p.trial), p.rtt
	}
	return p.interval, p.rtt
}

// asked takes note of the dialing end's question.
func (p *pulse) asked(allowed, rtt time.Duration) {
	if p.dialing {
		return
	}
	p.interval = min(max(allowed, p.base), longestSilence)
	if rtt > 0 {
		p.rtt = rtt
	}
}

// answered takes note of an answer.
func (p *pulse) answered(now time.Duration) {
	if p.open == 0 {
		return
	}
	if p.timing {
		p.rtt, p.timing = max(now-p.sent, 1), false // later answers are to later questions
	}
	p.open--
	if p.trial > 0 {
		p.good, p.interval = p.trial, p.longer(now, p.trial)
		p.trial = 0
	}
}

// longer is the silence to try after one of d did no harm.
func (p *pulse) longer(now, d time.Duration) time.Duration {
	if now >= p.until {
		p.ceiling = 0
	}
	next := max(d, min(2*d, longestSilence))
	if p.ceiling > 0 && next >= p.ceiling {
		return d
	}
	return next
}

// lost notes in what silence the transport was lost.
func (p *pulse) lost(now time.Duration) {
	p.lesson = 0
	if silent := now - p.heard; p.metered && silent >= p.base {
		p.lesson = silent
		if p.trial > 0 {
			p.lesson = p.trial // the rest was waiting for the answer
		}
	}
}

// learn draws the lesson, once it is known that there was nothing wrong with the
// network.
func (p *pulse) learn(now time.Duration) {
	if p.lesson == 0 {
		return
	}
	p.ceiling, p.until = p.lesson, now+lessonTerm
	if p.good >= p.lesson {
		p.good = p.lesson / 2
	}
	p.interval = max(p.good, p.base)
}

// forget starts over on another path.
func (p *pulse) forget() {
	p.interval, p.good, p.lesson, p.ceiling, p.rtt = p.base, 0, 0, 0, 0
}
