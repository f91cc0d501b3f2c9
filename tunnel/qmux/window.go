// Windows: how much of a stream may be on its way unread.

package qmux

import "time"

const (
	// least is a stream's window to begin with, which every stream has.
	least = 64 << 10
	// first is what is added to that at once if the session and the process have it to
	// spare.
	first = 192 << 10
	// windowBudget is what a session has for the part beyond least of all its windows. A
	// window grows up to fair, and as long as half of that is left, up to most: a lost
	// packet holds up what comes behind it for a round trip or two.
	fair         = 2 << 20
	most         = 8 << 20
	windowBudget = 64 << 20

	// narrowest is the window that a stream keeps while too much lies unread in the
	// process: one full record.
	narrowest = record

	// A window that is in the way is one that is read half empty within two round
	// trips, of which too short ones, and unknown ones, count as long as this.
	shortest = time.Millisecond
)

// A window is what this end lets the peer send on a stream.
type window struct {
	size  int       // how large it is when everything has been read
	owed  int       // what has been read and not yet been given back
	since time.Time // when something was given back last
}

// openWindowLocked makes the window of a new stream.
func (s *Session) openWindowLocked(in *receiving) {
	w := &in.window
	w.size, w.since = least, time.Now()
	if s.spare >= first && s.intake.Begin(first) {
		s.spare -= first
		w.size += first
	}
	in.limit = uint64(w.size)
}

// readLocked notes that n bytes were read, and says by how much the peer's limit is to
// be raised; 0 if it is too soon to say so.
func (s *Session) readLocked(w *window, n int) int {
	w.owed += n
	s.adjustLocked(w)
	if w.owed < w.size/2 {
		return 0
	}
	now := time.Now()
	if more := s.growthLocked(w); more > 0 && now.Sub(w.since) < 2*max(s.pulse.rtt, shortest) && s.intake.Grow(more) {
		s.spare -= more
		w.size += more
		w.owed += more
	}
	give := w.owed
	w.owed, w.since = 0, now
	return give
}

// adjustLocked takes from a window what has been read and not yet been given back,
// while too much lies unread in the process, and makes up for that later.
func (s *Session) adjustLocked(w *window) {
	switch scarce := s.intake.Scarce(); {
	case scarce && w.size > narrowest:
		less := min(w.owed, w.size-narrowest)
		s.returnLocked(max(w.size-least, 0) - max(w.size-less-least, 0))
		w.size -= less
		w.owed -= less
	case !scarce && w.size < least:
		w.owed += least - w.size
		w.size = least
	}
}

// growthLocked is by how much a window may grow now.
func (s *Session) growthLocked(w *window) int {
	if more := min(w.size, most-w.size); s.spare-more >= windowBudget/2 {
		return more
	}
	return min(w.size, max(fair-w.size, 0), s.spare)
}

// closeWindowLocked gives back what a window had beyond least.
func (s *Session) closeWindowLocked(w *window) {
	s.returnLocked(max(w.size-least, 0))
	w.size = 0
}

// returnLocked gives back n bytes that a window had beyond least.
func (s *Session) returnLocked(n int) {
	s.spare += n
	if s.over == nil { // or it has been returned
		s.intake.Return(n)
	}
}

// heldLocked notes that n bytes of memory more, or less, hold what has come.
func (s *Session) heldLocked(n int) {
	if s.over != nil {
		return // it has been noted
	}
	s.unread += n
	s.intake.AddUnread(n)
}
