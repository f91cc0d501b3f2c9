// Pace: how much data may queue up in front of a path, from the rate that the path has.

package qmux

import "time"

const (
	// maxQueueDelay bounds how long the data in front of the path takes to leave: a
	// heartbeat or a keystroke that is written next waits for so long.
	maxQueueDelay = 250 * time.Millisecond
	// maxAhead and minAhead bound the bytes in front of the path.
	maxAhead = 128 << 10
	minAhead = 8 << 10
	// firstAhead is that bound while the rate is unknown. A rate is no more than that after
	// the connection was idle for rateLifetime: the path may have changed.
	firstAhead   = 64 << 10
	rateLifetime = time.Second
	// A sample of the rate ends after sampleTime or sampleBytes.
	sampleTime  = 250 * time.Millisecond
	sampleBytes = 1 << 20
)

// A pace measures the rate of a path by how long writing takes. It needs nothing from the
// peer. At 512 KiB a second and more it limits nothing. Times count from Session.created.
type pace struct {
	rate   float64       // of the path, in bytes a second; 0: unknown
	began  time.Duration // start of the current sample,
	until  time.Duration // its latest write,
	bytes  int           // the bytes written in it,
	waited time.Duration // and the time that writing them took
	ahead  int           // bytes that may be in front of the path
}

// wrote notes that n bytes were written between two times, and returns whether ahead has
// changed.
func (p *pace) wrote(n int, began, ended time.Duration) bool {
	if began-p.until >= rateLifetime {
		p.rate, p.bytes = min(p.rate, firstAhead/maxQueueDelay.Seconds()), 0
	}
	if p.bytes == 0 {
		p.began, p.waited = began, 0
	}
	p.until, p.bytes, p.waited = ended, p.bytes+n, p.waited+ended-began
	if span := ended - p.began; span >= sampleTime || p.bytes >= sampleBytes {
		p.sample(float64(p.bytes)/max(span, 1).Seconds(), p.waited >= span/2)
	}
	return p.setAhead()
}

// limitTo lowers the rate to that of another connection if that is known, and returns
// whether ahead has changed. Where nothing is known, a high rate raises nothing: the path may
// have changed.
func (p *pace) limitTo(rate float64) bool {
	switch {
	case rate <= 0:
	case p.rate == 0:
		p.rate = min(rate, firstAhead/maxQueueDelay.Seconds())
	case rate < p.rate:
		p.rate = rate
	}
	return p.setAhead()
}

// setAhead sets ahead by the rate, and returns whether it has changed.
func (p *pace) setAhead() bool {
	before := p.ahead
	if p.rate > 0 {
		p.ahead = int(min(max(p.rate*maxQueueDelay.Seconds(), minAhead), maxAhead))
	}
	return p.ahead != before
}

// sample adds a measured rate. It lowers the estimate only if writing waited for the path.
func (p *pace) sample(rate float64, waited bool) {
	const enough = maxAhead / float64(maxQueueDelay/time.Millisecond) * 1e3 // a higher rate makes no difference
	switch {
	case p.rate == 0 && !waited && p.bytes < sampleBytes:
	case rate >= p.rate || p.rate == 0:
		p.rate = min(rate, enough)
	case waited: // by at most 8 at a time: the cause may have been temporary
		p.rate = max(rate, p.rate/8)
	}
	p.bytes = 0
}
