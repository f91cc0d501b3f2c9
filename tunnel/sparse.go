// Sparse: log lines that strangers can cause, at a bounded rate.

package tunnel

import (
	"net"
	"sync"
	"time"
)

const (
	// sparseEvery is the time between two lines about one source.
	sparseEvery = time.Minute
	// sparseSources is how many sources have lines of their own in that time.
	sparseSources = 32
)

// A Sparse lets one log line a minute through for each source, and for 32 sources at
// most, so that whoever makes a server fail a thousand times a second does not fill
// its disk as well. Its zero value lets the next one through.
type Sparse struct {
	mu   sync.Mutex // guards the following
	told map[Source]time.Time
	kept int
}

// Tell says whether to write a line about a now, and how many lines, about whomever,
// have been kept back since the last one.
func (s *Sparse) Tell(a net.Addr) (kept int, now bool) {
	of, t := SourceOf(a), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.told[of]
	if known || len(s.told) >= sparseSources {
		for source, at := range s.told {
			if t.Sub(at) >= sparseEvery {
				delete(s.told, source)
			}
		}
		_, known = s.told[of]
	}
	if known || len(s.told) >= sparseSources {
		s.kept++
		return 0, false
	}
	if s.told == nil {
		s.told = make(map[Source]time.Time)
	}
	kept, s.kept, s.told[of] = s.kept, 0, t
	return kept, true
}
