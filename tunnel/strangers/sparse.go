// Sparse: log lines that strangers can cause, at a bounded rate.

package strangers

import (
	"maps"
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

// A Sparse lets one log line a minute through for each source, and for 32 of them at
// most, so that whoever makes a server fail a thousand times a second does not fill its
// disk as well. Its zero value lets the next one through.
type Sparse struct {
	mu   sync.Mutex        // guards the following
	told map[any]time.Time // by source
	kept int
}

// Tell says whether to write a line now, and how many, about whomever, have been kept
// back since the last one. The source is an address, which stands for all of its
// Source, or any other value that can be the key of a map.
func (s *Sparse) Tell(source any) (kept int, now bool) {
	if a, ok := source.(net.Addr); ok {
		source = SourceOf(a)
	}
	t := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.told, func(_ any, at time.Time) bool { return t.Sub(at) >= sparseEvery })
	if _, known := s.told[source]; known || len(s.told) >= sparseSources {
		s.kept++
		return 0, false
	}
	if s.told == nil {
		s.told = make(map[any]time.Time)
	}
	kept, s.kept, s.told[source] = s.kept, 0, t
	return kept, true
}
