package kubeauth

// Limits: rate limits for each of many names.

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// toldApart bounds the names in limits. Above that, the least recently used one is
// dropped, and gets a full burst again.
const toldApart = 1 << 14

// limits has a rate limit for each name, so that names do not affect each other. Its
// method may be called at the same time.
type limits struct {
	perSecond rate.Limit
	burst     int

	mu    sync.Mutex
	names *lru.Cache // guarded by mu: to *rate.Limiter
}

func newLimits(perSecond rate.Limit, burst int) *limits {
	return &limits{perSecond: perSecond, burst: burst, names: lru.New(toldApart)}
}

// allow takes n from the limit of who, and reports whether that was possible.
func (l *limits) allow(who string, n int) bool {
	l.mu.Lock()
	v, _ := l.names.Get(who)
	bound, ok := v.(*rate.Limiter)
	if !ok {
		bound = rate.NewLimiter(l.perSecond, l.burst)
		l.names.Add(who, bound)
	}
	l.mu.Unlock()
	return bound.AllowN(time.Now(), n)
}
