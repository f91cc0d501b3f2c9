package kubeauth

// Refusals: counting and logging refused claims.

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/lru"
)

const (
	// logEvery is the least time between two log lines about one node.
	logEvery = time.Minute
	// logNodes bounds the nodes with a limit of their own. Above that, the least recently
	// used one is dropped, and gets a log line sooner.
	logNodes = 1 << 14
)

// refusals counts and logs refused claims. Its methods may be called at the same
// time.
type refusals struct {
	metrics metrics
	log     *slog.Logger
	lines   *Lines
}

// Lines limits log lines to one a minute for each of the last 16,384 users. Its method may
// be called at the same time.
type Lines struct {
	mu    sync.Mutex
	users *lru.Cache // guarded by mu: from users to *refusal
}

// NewLines returns Lines without any users.
func NewLines() *Lines { return &Lines{users: lru.New(logNodes)} }

// A refusal has the state of one user.
type refusal struct {
	logged time.Time // when the last line was
	since  int       // refused since then
}

func newRefusals(r prometheus.Registerer, log *slog.Logger) (*refusals, error) {
	m, err := newMetrics(r)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &refusals{metrics: m, log: log, lines: NewLines()}, nil
}

// note counts a refusal, and logs it unless the user had a line in the last minute.
func (r *refusals) note(who string, c *claim, why error) {
	r.metrics.refused.WithLabelValues(c.kind).Inc()
	if more, ok := r.lines.Due(who); ok {
		r.log.Warn("a node claims what it may not", "user", who, "claim", c.kind, "field", c.field, "err", why, "remedy", c.remedy, "refusedSinceLastLine", more)
	}
}

// Due reports whether a line about who may be logged, and how many were dropped since the
// last one.
func (l *Lines) Due(who string) (more int, ok bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	v, _ := l.users.Get(who)
	known, _ := v.(*refusal)
	if known == nil {
		l.users.Add(who, &refusal{logged: now})
		return 0, true
	}
	if now.Sub(known.logged) < logEvery {
		known.since++
		return 0, false
	}
	more = known.since
	known.logged, known.since = now, 0
	return more, true
}
