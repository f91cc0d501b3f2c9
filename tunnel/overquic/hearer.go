// Hearing: when the accepting end takes a path for dead, and when for too narrow.

package overquic

import "time"

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
	hope     bool // something has come since it was parked

	proved look // when something of ours was last answered, or the silence was ended
}

// Of deafness the peer tells again every deafPause, and it is believed for deafFor.
const (
	deafPause = 5 * time.Second
	deafFor   = slowest + 2*time.Second
	// heed is how long what comes first on a path that was dead is given to be read:
	// it may be the word that the peer hears nothing.
	heed = 50 * time.Millisecond
)

func (h *hearer) start(l look) {
	h.received, h.heard, h.planned, h.proved = l.received, l.now, l.now, l
}

// look says what to do after l.
func (h *hearer) look(l look) step {
	t := tempoOf(h.promise)
	if over := l.now.Sub(h.planned); over > t.late {
		h.heard, h.proved.now = h.heard.Add(over), h.proved.now.Add(over)
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
		h.received, h.heard, h.hope = l.received, l.now, false
	case l.received != h.received && !l.now.Before(h.deaf) && !h.parked.IsZero() && !h.hope:
		h.received, h.hope = l.received, true
		s.next = l.now.Add(heed)
	case (l.received != h.received || h.hope) && !l.now.Before(h.deaf):
		s = step{back: !h.parked.IsZero(), next: l.now.Add(2 * t.busy)}
		h.received, h.heard, h.parked, h.hope = l.received, l.now, time.Time{}, false
	case !h.parked.IsZero():
		s = step{over: l.now.Sub(h.parked) >= h.window, next: l.now.Add(t.busy)}
	case l.now.Sub(h.heard) >= limit:
		h.parked = l.now
		s = step{lost: true, over: h.window <= 0, next: l.now.Add(t.busy)}
	default:
		s = step{idle: true, next: h.heard.Add(limit)}
	}
	h.measure(l, t, &s)
	h.planned = s.next
	return s
}

// measure finds out that what fills its packets does not arrive while what does not
// fill them does: the path has come to bear less than it did, and says nothing of
// it (RFC 8899, 4.3). The library makes its packets small again only on another
// path, and only the peer can take another. It does when it hears nothing at all.
func (h *hearer) measure(l look, t tempo, s *step) {
	bytes, packets := l.bytes-h.proved.bytes, l.sent-h.proved.sent
	full := bytes >= fullPackets*packetSize && bytes >= packets*packetSize/2 // most are not mere acknowledgements
	switch wait := 2 * max(t.grace, 2*l.rtt); {
	case l.sample != h.proved.sample || !h.parked.IsZero():
		h.proved = l
	case !full:
	case l.now.Sub(h.proved.now) < wait:
		s.idle, s.next = false, earlier(s.next, l.now.Add(2*t.busy))
	case l.received != h.proved.received:
		s.mute, h.proved = true, l
	}
}

// fullPackets is how many packets' worth must have gone without an answer before a
// path is suspected of bearing no full ones.
const fullPackets = 4

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
