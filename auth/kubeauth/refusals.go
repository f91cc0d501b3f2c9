package kubeauth

// Refusals: who is told of a claim that was refused, besides the node.

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/lru"
)

const (
	// logEvery is the time between two lines about one node.
	logEvery = time.Minute
	// logNodes is how many nodes are told apart. Beyond, the one that has been
	// refused nothing for longest is forgotten, and has a line sooner.
	logNodes = 1 << 14
)

// refusals counts and logs refused claims. Its methods may be called at the same
// time.
type refusals struct {
	metrics metrics
	log     *slog.Logger

	mu    sync.Mutex
	nodes *lru.Cache // guarded by mu: from users to *refusal
}

// A refusal is what is known of one user's.
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
	return &refusals{metrics: m, log: log, nodes: lru.New(logNodes)}, nil
}

// note counts a refusal, and logs it unless the user has had a line lately.
func (r *refusals) note(who string, c *claim, why error) {
	r.metrics.refused.WithLabelValues(c.kind).Inc()
	if more, ok := r.due(who, time.Now()); ok {
		r.log.Warn("a node claims what it may not", "user", who, "claim", c.kind, "field", c.field, "err", why, "remedy", c.remedy, "refusedSinceLastLine", more)
	}
}

// due tells whether it is time for a line about who, and how many claims were
// refused since the last without one.
func (r *refusals) due(who string, now time.Time) (more int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, _ := r.nodes.Get(who)
	known, _ := v.(*refusal)
	if known == nil {
		r.nodes.Add(who, &refusal{logged: now})
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
