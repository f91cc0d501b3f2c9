package evidence

// What a Source says of sessions.

import (
	"net/netip"
	"time"
)

// A State is how a node's session stands.
type State string

// The states.
const (
	Attached State = "Attached" // it has a connection
	Parked   State = "Parked"   // it waits for another connection
	Detached State = "Detached" // there is none
)

// A Cause is why a session lost its connection or ended.
type Cause string

// The causes. Others prove as much as Failed does: that it was not silence.
const (
	Silent   Cause = "Silent"   // nothing was heard for too long
	Closed   Cause = "Closed"   // the far side closed or reset it
	Left     Cause = "Left"     // the agent said goodbye
	Replaced Cause = "Replaced" // another session of the node took its place
	Refused  Cause = "Refused"  // the agent was turned away
	Drained  Cause = "Drained"  // this server shut down
	Failed   Cause = "Failed"   // a fault
)

// A Change is a turn in the life of a node's session.
type Change struct {
	Number uint64 // counts the node's changes, from 1
	At     time.Time
	State  State
	Cause  Cause  // of Parked and Detached
	Err    string // for people
	// Heard is when something last came from the agent before At; zero if that is
	// not known.
	Heard     time.Time
	Session   uint64
	Transport string
	Addr      string // where the agent's packets came from
}

// end is when the span that c ended was over.
func (c *Change) end() time.Time {
	if c.Heard.IsZero() {
		return c.At
	}
	return c.Heard
}

// A Session is what is known of a node's. Its Change is the latest; while it is
// attached, Heard and Addr are as of now.
type Session struct {
	Node string
	Change
	Window  time.Duration // how long it may stay parked
	RTT     time.Duration // zero if unknown
	Changes []Change      // some, oldest first, at least the latest

	// Server is which of several servers it is, or was, with, and Also are others with a
	// session of the node that has a connection. Elsewhere says that another server speaks
	// of the node, and Unheard are those that live, cannot be heard, and may have it.
	Server        string
	Also, Unheard []string
	Elsewhere     bool

	gaps     []gap // the judge's own knowledge, oldest first
	recalled bool  // it was with a server before this one
}

// A Source knows sessions. Its methods may be called at the same time.
type Source interface {
	// Observe returns what is known of a node that has, or had, a session; of others,
	// with false, Elsewhere and Unheard.
	Observe(node string) (Session, bool)
}

// quiet says whether nothing has come from an attached node for as long as
// patience.
func (s *Session) quiet(now time.Time, patience time.Duration) bool {
	return s.State == Attached && !s.Heard.IsZero() && now.Sub(s.Heard) >= patience
}

// silent returns a node's last word, if it is silent now.
func (s *Session) silent(now time.Time, patience time.Duration) (time.Time, bool) {
	if s.State == Attached {
		return s.Heard, s.quiet(now, patience)
	}
	return s.end(), s.Cause == Silent
}

// returned returns the last word before a silence that has been over for less than
// term: the node is in reach, and has had no time for a heartbeat.
func (s *Session) returned(now time.Time, term time.Duration) (time.Time, bool) {
	n := len(s.Changes)
	if g := len(s.gaps); g > 0 && n > 0 && s.State == Attached && s.gaps[g-1].to.After(s.Changes[n-1].At) {
		return s.gaps[g-1].from, now.Before(s.gaps[g-1].to.Add(term))
	}
	if s.State != Attached || n < 2 || !now.Before(s.Changes[n-1].At.Add(term)) {
		return time.Time{}, false
	}
	before := &s.Changes[n-2]
	return before.end(), before.State != Attached && before.Cause == Silent
}

// proven says whether the session's end proves that the node, not the network,
// ended it.
func (s *Session) proven() bool {
	return s.State != Attached && s.Cause != Silent && s.Cause != Drained && s.Cause != Replaced
}

// local says whether the agent is on this machine, or nowhere that has an address. One
// that is recalled counts as being on another.
func (s *Session) local() bool {
	if s.recalled {
		return false
	}
	a, err := netip.ParseAddrPort(s.Addr)
	return err != nil || a.Addr().Unmap().IsLoopback()
}

// first returns the last word before the first of the silences that follow each other
// until that of a last word, with nothing between them but returns shorter than term:
// whoever was back for a moment may have been so by chance, or been the first.
func (s *Session) first(last, now time.Time, patience, term time.Duration) time.Time {
	all := spans(s, now, patience)
	i := len(all) - 1
	for i >= 0 && !all[i].end.Equal(last) {
		i--
	}
	for ; i > 0 && all[i-1].silent && all[i].end.Sub(all[i].begin) < term; i-- {
		last = all[i-1].end
	}
	return last
}
