package kubeauth

// Limits: how much each of many may have in a second.

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// toldApart is how many nodes and accounts limits tell apart. Beyond, the one that has
// asked for nothing for longest is forgotten, which gives it a full burst again.
const toldApart = 1 << 14

// limits give each name a bound of its own: none keeps another from being served. Their
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

// allow tells whether who may have n more now; if so, it has them.
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
