package balance

// Targets that a dial did not reach lately.

import (
	"iter"
	"maps"
	"sync"
	"time"
)

const (
	// asideFor is how long a target is tried after all others once a dial has not reached it.
	// Then one connection finds out whether it is well.
	asideFor = 10 * time.Second
	// maxAside is how many targets of a front are set aside; more are tried as any other.
	maxAside = 1024
)

// aside are the targets of a front that are set aside. Each front has its own, so that
// nobody's endpoints are of account for another Service's. The zero value has none.
type aside struct {
	mu    sync.Mutex // guards the following
	until map[string]time.Time
}

// order has the targets that are set aside tried last, and of those at most maxTries.
func (a *aside) order(all iter.Seq[string]) iter.Seq[string] {
	return func(yield func(string) bool) {
		var later []string
		for target := range all {
			if !a.turn(target) {
				if len(later) < maxTries {
					later = append(later, target)
				}
			} else if !yield(target) {
				return
			}
		}
		for _, target := range later {
			if !yield(target) {
				return
			}
		}
	}
}

// turn says whether target is tried now. Whoever is told so when its time is over finds out
// for all: others have it aside until that has come out well.
func (a *aside) turn(target string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	until, ok := a.until[target]
	if !ok {
		return true
	}
	now := time.Now()
	if now.Before(until) {
		return false
	}
	a.until[target] = now.Add(asideFor)
	return true
}

// failed sets target aside, and says whether it was not.
func (a *aside) failed(target string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	_, was := a.until[target]
	if !was && len(a.until) >= maxAside {
		maps.DeleteFunc(a.until, func(_ string, until time.Time) bool { return now.After(until) })
		if len(a.until) >= maxAside {
			return false
		}
	}
	if a.until == nil {
		a.until = make(map[string]time.Time)
	}
	a.until[target] = now.Add(asideFor)
	return !was
}

// worked has target tried as any other.
func (a *aside) worked(target string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.until, target)
}
