// Windows: how much of a stream may be on its way unread.

package mux

import "time"

const (
	// Least is a stream's window to begin with. Both ends must agree on it: it
	// is part of the protocol.
	Least = 64 << 10
	// first is what is added to that at once if the session has it to spare.
	first = 192 << 10
	// budget is what a session has for the part beyond Least of all its windows. A
	// window grows up to fair, and as long as half of that is left, up to most: a lost
	// packet holds up what comes behind it for a round trip or two.
	fair   = 2 << 20
	most   = 8 << 20
	budget = 64 << 20

	// last is the window that a stream keeps while too much lies unread in the
	// process: one full frame.
	last = MaxFrame

	maxWindow = 1<<31 - 1

	// A window that is in the way is one that is read half empty within two
	// round trips, of which too short ones, and unknown ones, count as long as
	// this.
	shortest = 20 * time.Millisecond
)

// A window is what this end lets the peer send. The session's mutex guards it.
type window struct {
	size  int       // how large it is when everything has been read
	open  int       // what the peer may still send
	owed  int       // what has been read and not yet been given back
	since time.Time // when something was given back last
}

// openLocked makes the first window of a stream, and says how much larger than
// Least it is.
func (s *Session) openLocked(w *window) (extra int) {
	w.size, w.open = Least, Least
	return s.widenLocked(w)
}

// widenLocked adds to the window of a new stream what can be spared, and says how
// much that is.
func (s *Session) widenLocked(w *window) (extra int) {
	if s.spare >= first && s.intake.Begin(first) {
		extra = first
		s.spare -= extra
	}
	w.size, w.open, w.since = w.size+extra, w.open+extra, time.Now()
	return extra
}

// readLocked notes that n bytes were read, and says how many the peer should be
// told that it may send; 0 if it is too soon to say so.
func (s *Session) readLocked(w *window, n int) int {
	w.owed += n
	s.adjustLocked(w)
	if w.owed < w.size/2 {
		return 0
	}
	now := time.Now()
	if more := s.growthLocked(w); more > 0 && now.Sub(w.since) < 2*s.roundTrip() && s.intake.Grow(more) {
		s.spare -= more
		w.size += more
		w.owed += more
	}
	give := w.owed
	w.owed, w.since = 0, now
	w.open += give
	return give
}

// adjustLocked takes from a window what has been read and not yet been given back,
// while too much lies unread in the process, and makes up for that later.
func (s *Session) adjustLocked(w *window) {
	switch scarce := s.intake.Scarce(); {
	case scarce && w.size > last:
		less := min(w.owed, w.size-last)
		s.returnLocked(max(w.size-Least, 0) - max(w.size-less-Least, 0))
		w.size -= less
		w.owed -= less
	case !scarce && w.size < Least:
		w.owed += Least - w.size
		w.size = Least
	}
}

// returnLocked gives back n bytes that a window had beyond Least.
func (s *Session) returnLocked(n int) {
	s.spare += n
	if !s.dead { // or it has been returned
		s.intake.Return(n)
	}
}

// cameLocked notes that n bytes have come for a stream, and goneLocked that they were
// read or thrown away.
func (s *Session) cameLocked(n int) {
	s.unread += n
	s.intake.Received(n)
}

func (s *Session) goneLocked(n int) {
	if !s.dead { // or it has been noted
		s.unread -= n
		s.intake.Read(n)
	}
}

// growthLocked is by how much a window may grow now.
func (s *Session) growthLocked(w *window) int {
	if more := min(w.size, most-w.size); s.spare-more >= budget/2 {
		return more
	}
	return min(w.size, max(fair-w.size, 0), s.spare)
}

// closeLocked gives back what a window had beyond Least.
func (s *Session) closeLocked(w *window) {
	s.returnLocked(max(w.size-Least, 0))
	w.size = 0
}

// roundTrip is that of the connection, or a guess.
func (s *Session) roundTrip() time.Duration { return max(s.Link().RTT, shortest) }
