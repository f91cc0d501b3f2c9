// LogLimiter and RepeatLimiter: rate limits for log lines that clients can cause.

package strangers

import (
	"maps"
	"math"
	"net"
	"sync"
	"time"
)

const (
	// logInterval is the time after which a subject may have one more line.
	logInterval = time.Minute
	// maxLogSources is how many sources may have a line of a LogLimiter in that time.
	maxLogSources = 32
	// repeatBurst is how many lines about one subject a RepeatLimiter allows at once.
	repeatBurst = 20
)

// A LogLimiter allows one log line a minute for each source, and for 32 sources at most, so
// that a client that causes errors a thousand times a second does not fill the disk. The
// zero value allows the next line.
type LogLimiter struct{ limiter }

// Allow says whether to write a line now, and how many lines of all sources were suppressed
// since the last one. The source is a net.Addr, which stands for its Source, or any other
// value that can be the key of a map.
func (l *LogLimiter) Allow(source any) (kept int, now bool) {
	if a, ok := source.(net.Addr); ok {
		source = SourceOf(a)
	}
	return l.allow(source, 1, maxLogSources)
}

// A RepeatLimiter allows 20 log lines about each subject at once, and one a minute after
// that. It is for lines that clients cause once they are authenticated, such as those about
// a node's sessions: ordinary ones are all logged, of however many nodes. The zero value
// allows the next line.
type RepeatLimiter struct{ limiter }

// Allow says whether to write a line now, and how many lines about all subjects were
// suppressed since the last one. The subject is a value that can be the key of a map.
func (l *RepeatLimiter) Allow(subject any) (kept int, now bool) {
	return l.allow(subject, repeatBurst, math.MaxInt)
}

// A limiter allows a burst of lines about a subject, and one more each logInterval.
type limiter struct {
	mu         sync.Mutex        // guards the following
	full       map[any]time.Time // by subject: when it may have its burst again
	swept      time.Time         // when expired subjects were last removed
	suppressed int
}

// allow is Allow with that burst, for most subjects at a time.
func (l *limiter) allow(subject any, burst, most int) (kept int, now bool) {
	t := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.full) <= maxLogSources || t.Sub(l.swept) >= logInterval { // many are not looked at for each line
		l.swept = t
		maps.DeleteFunc(l.full, func(_ any, full time.Time) bool { return !full.After(t) })
	}
	full, known := l.full[subject]
	if full.Before(t) {
		full = t
	}
	if full = full.Add(logInterval); full.Sub(t) > time.Duration(burst)*logInterval || !known && len(l.full) >= most {
		l.suppressed++
		return 0, false
	}
	if l.full == nil {
		l.full = make(map[any]time.Time)
	}
	kept, l.suppressed, l.full[subject] = l.suppressed, 0, full
	return kept, true
}
