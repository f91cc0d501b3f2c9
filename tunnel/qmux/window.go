// Windows: how much of a stream the peer may send before it is read (RFC 9000, 4.1).

package qmux

import "time"

const (
	// initialWindow is the window that every stream has, in bytes.
	initialWindow = 64 << 10
	// extraWindow is added to it at once if session and process have it to spare.
	extraWindow = 192 << 10
	// windowBudget is what a session has for the part of its windows beyond initialWindow.
	// A window grows up to fairWindow, and while half of the budget is left up to
	// maxWindow: a lost packet delays the data behind it for a round trip or two.
	fairWindow   = 2 << 20
	maxWindow    = 8 << 20
	windowBudget = 64 << 20

	// minWindow is the window that a stream keeps while the process holds too much unread
	// data: one full record.
	minWindow = record

	// A window limits the throughput if half of it is read within two round trips.
	// minWindowRTT stands for round trips that are shorter or unknown.
	minWindowRTT = time.Millisecond
)

// A window is the flow control window of a receiving part.
type window struct {
	size     int       // in bytes, once everything has been read
	consumed int       // bytes read by which the peer's limit was not raised yet
	raisedAt time.Time // when the limit was last raised
}

// openWindowLocked sets the window of a new stream.
func (s *Session) openWindowLocked(in *receiving) {
	w := &in.window
	w.size, w.raisedAt = initialWindow, time.Now()
	if s.windowSpare >= extraWindow && s.intake.Begin(extraWindow) {
		s.windowSpare -= extraWindow
		w.size += extraWindow
	}
	in.limit, in.told = uint64(w.size), initialWindow
}

// raiseWindowLocked notes that n bytes were read, and returns by how much to raise the
// peer's limit; 0 if it is too soon.
func (s *Session) raiseWindowLocked(w *window, n int) int {
	if s.err != nil {
		return 0 // the session has given its part of the intake back
	}
	w.consumed += n
	s.adjustWindowLocked(w)
	if w.consumed < w.size/2 {
		return 0
	}
	now := time.Now()
	if more := s.windowGrowthLocked(w); more > 0 && now.Sub(w.raisedAt) < 2*max(s.keepalive.rtt, minWindowRTT) && s.intake.Widen(more) {
		s.windowSpare -= more
		w.size += more
		w.consumed += more
	}
	give := w.consumed
	w.consumed, w.raisedAt = 0, now
	return give
}

// adjustWindowLocked narrows a window by what was consumed while the process holds too
// much unread data, and widens it to initialWindow again afterwards.
func (s *Session) adjustWindowLocked(w *window) {
	switch scarce := s.intake.Scarce(); {
	case scarce && w.size > minWindow:
		less := min(w.consumed, w.size-minWindow)
		s.returnWindowLocked(max(w.size-initialWindow, 0) - max(w.size-less-initialWindow, 0))
		w.size -= less
		w.consumed -= less
	case !scarce && w.size < initialWindow:
		w.consumed += initialWindow - w.size
		w.size = initialWindow
	}
}

// windowGrowthLocked is by how much a window may grow now.
func (s *Session) windowGrowthLocked(w *window) int {
	if more := min(w.size, maxWindow-w.size); s.windowSpare-more >= windowBudget/2 {
		return more
	}
	return min(w.size, max(fairWindow-w.size, 0), s.windowSpare)
}

// closeWindowLocked returns the part of a window beyond initialWindow.
func (s *Session) closeWindowLocked(w *window) {
	s.returnWindowLocked(max(w.size-initialWindow, 0))
	w.size = 0
}

// returnWindowLocked returns n bytes to the session and the process.
func (s *Session) returnWindowLocked(n int) {
	s.windowSpare += n
	if s.err == nil { // else failLocked has returned it
		s.intake.Return(n)
	}
}

// holdUnreadLocked adds n to the bytes of memory that hold unread data.
func (s *Session) holdUnreadLocked(n int) {
	if s.err != nil {
		return // failLocked has subtracted them
	}
	s.unread += n
	s.intake.AddUnread(n)
}
