// Pace: how much may lie before a path, by what the path takes.

package qmux

import "time"

const (
	// aheadTime is for how long what lies before the path may keep it busy: whatever
	// is written next, a heartbeat or a keystroke, waits for so long.
	aheadTime = 250 * time.Millisecond
	// gather is how many bytes may lie in the ring unsent at most, and leastAhead at
	// least: it is two or three of what anybody would call little.
	gather     = 128 << 10
	leastAhead = 8 << 10
	// firstAhead is how many may before it is known what the path takes, and after it
	// has been idle for paceIdle: then it may be another.
	firstAhead = 64 << 10
	paceIdle   = time.Second
	// What a path takes is judged when so much time or so many bytes have passed.
	paceTime  = 250 * time.Millisecond
	paceBytes = 1 << 20
)

// A pace judges what a path takes by how long writing to it lasts. It asks nothing of
// the peer, and on a path that takes a MiB in a second it holds nothing back. Times are counted from the link's birth.
type pace struct {
	rate  float64       // bytes a second that the path takes; 0: not known yet
	began time.Duration // the time that is being judged,
	until time.Duration // so far,
	bytes int           // what was written in it,
	busy  time.Duration // and how long that took
	ahead int           // how much may lie before the path
}

// wrote takes note that n bytes were written between two times, and says whether
// ahead has changed.
func (p *pace) wrote(n int, began, ended time.Duration) bool {
	before := p.ahead
	if began-p.until >= paceIdle {
		p.rate, p.bytes = min(p.rate, firstAhead/aheadTime.Seconds()), 0
	}
	if p.bytes == 0 {
		p.began, p.busy = began, 0
	}
	p.until, p.bytes, p.busy = ended, p.bytes+n, p.busy+ended-began
	if span := ended - p.began; span >= paceTime || p.bytes >= paceBytes {
		p.judge(float64(p.bytes)/max(span, 1).Seconds(), p.busy >= span/2)
	}
	p.aim()
	return p.ahead != before
}

// heed takes over the rate that another connection has learned, if that is known and less, and
// says whether ahead has changed.
func (p *pace) heed(rate float64) bool {
	before := p.ahead
	if rate > 0 && (p.rate == 0 || rate < p.rate) {
		p.rate = rate
	}
	p.aim()
	return p.ahead != before
}

func (p *pace) aim() {
	if p.rate > 0 {
		p.ahead = int(min(max(p.rate*aheadTime.Seconds(), leastAhead), gather))
	}
}

// judge takes note of a rate. That the path takes no more is only said if it was what
// writing waited for.
func (p *pace) judge(rate float64, waited bool) {
	const enough = gather / float64(aheadTime/time.Millisecond) * 1e3 // more makes no difference
	switch {
	case p.rate == 0 && !waited && p.bytes < paceBytes:
	case rate >= p.rate || p.rate == 0:
		p.rate = min(rate, enough)
	case waited: // though it may have been for something that is over
		p.rate = max(rate, p.rate/8)
	}
	p.bytes = 0
}
