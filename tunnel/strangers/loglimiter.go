// LogLimiter: a rate limit for log lines that clients can cause.

package strangers

import (
	"maps"
	"net"
	"sync"
	"time"
)

const (
	// logInterval is the time between two lines about one source.
	logInterval = time.Minute
	// maxLogSources is how many sources may have a line in that time.
	maxLogSources = 32
)

// A LogLimiter allows one log line a minute for each source, and for 32 sources at most, so
// that a client that causes errors a thousand times a second does not fill the disk. The
// zero value allows the next line.
type LogLimiter struct {
	mu         sync.Mutex        // guards the following
	logged     map[any]time.Time // by source
	suppressed int
}

// Allow says whether to write a line now, and how many lines of all sources were suppressed
// since the last one. The source is a net.Addr, which stands for its Source, or any other
// value that can be the key of a map.
func (s *LogLimiter) Allow(source any) (kept int, now bool) {
	if a, ok := source.(net.Addr); ok {
		source = SourceOf(a)
	}
	t := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.logged, func(_ any, at time.Time) bool { return t.Sub(at) >= logInterval })
	if _, known := s.logged[source]; known || len(s.logged) >= maxLogSources {
		s.suppressed++
		return 0, false
	}
	if s.logged == nil {
		s.logged = make(map[any]time.Time)
	}
	kept, s.suppressed, s.logged[source] = s.suppressed, 0, t
	return kept, true
}

const (
	// repeatBurst is how many lines about one subject a RepeatLimiter allows at once, and
	// repeatInterval the time until it allows one more.
	repeatBurst    = 20
	repeatInterval = time.Minute
)

// A RepeatLimiter allows 20 log lines about each subject at once, and one a minute after
// that. It is for lines that clients cause once they are authenticated, such as those about
// a node's sessions: ordinary ones are all logged, of however many nodes. The zero value
// allows the next line.
type RepeatLimiter struct {
	mu         sync.Mutex        // guards the following
	full       map[any]time.Time // by subject: when it may have repeatBurst lines again
	swept      time.Time         // when expired subjects were last removed
	suppressed int
}

// Allow says whether to write a line now, and how many lines about all subjects were
// suppressed since the last one. The subject is a value that can be the key of a map.
func (l *RepeatLimiter) Allow(subject any) (kept int, now bool) {
	t := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.Sub(l.swept) >= repeatInterval {
		l.swept = t
		maps.DeleteFunc(l.full, func(_ any, full time.Time) bool { return !full.After(t) })
	}
	full := l.full[subject]
	if full.Before(t) {
		full = t
	}
	if full = full.Add(repeatInterval); full.Sub(t) > repeatBurst*repeatInterval {
		l.suppressed++
		return 0, false
	}
	if l.full == nil {
		l.full = make(map[any]time.Time)
	}
	kept, l.suppressed, l.full[subject] = l.suppressed, 0, full
	return kept, true
}
