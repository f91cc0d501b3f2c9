package evidence

// Gaps: silences that were over before a session had noticed them, as it does late
// with a long keepalive or --metered. Afterwards it looks as if they had never been.

import (
	"maps"
	"slices"
	"time"
)

const (
	// maxGaps is how many gaps of a node are remembered.
	maxGaps = 8
	// looks is how many times, while a node says nothing for as long as Silence, it
	// is looked at.
	looks = 4
)

// A gap is a time in which nothing came through a connection.
type gap struct {
	from, to time.Time // the last word before it, and one after it
}

// A sessionRecord is the state of a session when it was last observed.
type sessionRecord struct {
	at, heard time.Time
	number    uint64 // of the latest change
	quiet     bool   // it was attached, and had said nothing for as long as Silence
	gaps      []gap  // never written to
}

// recordLocked compares a session with its last record and sets the gaps of the session.
func (j *Judge) recordLocked(s *Session, now time.Time) {
	k := j.records[s.Node]
	if k == nil {
		k = &sessionRecord{}
		j.records[s.Node] = k
	}
	if k.quiet {
		if word := s.wordAfter(k.number); word.After(k.at) {
			k.gaps = append(slices.Clone(k.gaps[max(len(k.gaps)-maxGaps+1, 0):]), gap{k.heard, word})
		}
	}
	k.at, k.heard, k.number, k.quiet = now, s.Heard, s.Number, s.quiet(now, j.cfg.Silence)
	s.gaps = k.gaps
}

// forgetLocked drops the records of sessions that were not observed at now.
func (j *Judge) forgetLocked(now time.Time) {
	maps.DeleteFunc(j.records, func(_ string, k *sessionRecord) bool { return !k.at.Equal(now) })
}

// wordAfter is when something was last heard on the connection that there was as
// of a change, as far as that is known.
func (s *Session) wordAfter(number uint64) time.Time {
	if s.Number == number {
		return s.Heard
	}
	for i := range s.Changes {
		if c := &s.Changes[i]; c.Number == number+1 {
			return c.end()
		}
	}
	return time.Time{}
}
