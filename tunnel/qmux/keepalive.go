// Keepalive: the interval between pings, and how a metered link adapts it.

package qmux

import "time"

const (
	// minKeepalive is the shortest interval that a peer's idle timeout can lead to.
	minKeepalive = time.Second
	// maxKeepalive bounds the interval of a metered link, and what a peer may announce.
	maxKeepalive = 10 * time.Minute
	// maxAcceptorDelay bounds how much later than the dialing end the accepting end pings.
	maxAcceptorDelay = 3 * time.Second
)

// A keepalive says after how much silence on the first connection the peer is pinged. The
// dialing end announces its next interval with each ping (SILENCE), so that an idle link
// costs one exchange of packets an interval.
//
// A metered link doubles the interval whenever the connection has survived a silence of that
// length. If it did not survive although the next one could be made at once, a middlebox
// must have forgotten it: the interval goes back to half of that silence, and stays below
// it until the path changes.
type keepalive struct {
	metered   bool
	base      time.Duration // the interval that both ends have agreed on
	interval  time.Duration // the present interval; base, unless the link is metered
	rtt       time.Duration // the latest round trip; zero before the first
	usualRTT  time.Duration // and the usual one: see measured
	sampledAt uint64        // bytes moved when it was last measured

	trial     bool          // the unanswered ping has ended a silence of a whole interval
	lostAfter time.Duration // length of the silence that the connection did not survive; zero: none
	ceiling   time.Duration // a silence that the path is known not to survive; zero: none
}

// acceptorDelay is how much longer than the dialing end the accepting end waits.
func (p *keepalive) acceptorDelay() time.Duration { return min(p.base/5, maxAcceptorDelay) }

// pongTimeout is the time between the dialing end's ping, or when it was due, and the loss
// of the connection. It is longer where the round trip is long.
func (p *keepalive) pongTimeout() time.Duration {
	return max(2*p.acceptorDelay(), min(4*p.usualRTT, 4*p.acceptorDelay()))
}

// slowTimeout is how much longer than the interval a peer may be silent that is slow, not
// dead. With the default of the interval the whole silence is about as long as the lease of
// a node, 40 s.
func (p *keepalive) slowTimeout() time.Duration { return 2 * p.base }

// nextInterval is the interval after the ping is answered.
func (p *keepalive) nextInterval() time.Duration {
	next := max(p.interval, min(2*p.interval, maxKeepalive))
	if !p.trial || p.ceiling > 0 && next >= p.ceiling {
		return p.interval
	}
	return next
}

// announced handles the dialing end's SILENCE.
func (p *keepalive) announced(allowed, rtt time.Duration) {
	p.interval = min(max(allowed, p.base), maxKeepalive)
	if rtt > 0 {
		p.measured(rtt)
	}
}

// measured notes a round trip. The usual one falls at once and rises by an eighth of the
// difference (RFC 9002, section 5.3): an answer that an outage has delayed must not make the
// next loss take longer to find.
func (p *keepalive) measured(rtt time.Duration) {
	p.rtt = max(rtt, 1)
	if p.usualRTT == 0 || p.rtt < p.usualRTT {
		p.usualRTT = p.rtt
	} else {
		p.usualRTT += (p.rtt - p.usualRTT) / 8
	}
}

// pongReceived handles the answer to a ping.
func (p *keepalive) pongReceived() { p.interval, p.trial = p.nextInterval(), false }

// lost notes after how much silence the connection was lost.
func (p *keepalive) lost(silent time.Duration) {
	p.lostAfter = 0
	if p.metered && silent >= p.base {
		p.lostAfter = silent
		if p.trial {
			p.lostAfter = p.interval // the rest of it was waiting for the answer
		}
	}
}

// restart starts on another connection, and takes the loss of the one before into account.
func (p *keepalive) restart() {
	if p.lostAfter > 0 {
		p.ceiling = p.lostAfter
		p.interval = max(p.lostAfter/2, p.base)
	}
	p.lostAfter, p.trial = 0, false
}

// reset forgets everything that was learned of a path.
func (p *keepalive) reset() {
	p.interval, p.lostAfter, p.ceiling, p.rtt, p.usualRTT = p.base, 0, 0, 0, 0
}
