// Sparse: log lines that strangers can cause, at a bounded rate.

package tunnel

import (
	"sync"
	"time"
)

// sparseEvery is the time between two lines of a Sparse.
const sparseEvery = 10 * time.Second

// A Sparse lets one log line through every 10 s, so that whoever makes a server fail
// a thousand times a second does not fill its disk as well. Its zero value lets the
// next one through.
type Sparse struct {
	mu   sync.Mutex // guards the following
	told time.Time
	kept int
}

// Tell says whether to write a line now, and how many have been kept back since the
// last one.
func (s *Sparse) Tell() (kept int, now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := time.Now()
	if !s.told.IsZero() && t.Sub(s.told) < sparseEvery {
		s.kept++
		return 0, false
	}
	kept, s.kept, s.told = s.kept, 0, t
	return kept, true
}
