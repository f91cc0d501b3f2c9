package balance

// Targets whose last dial failed.

import (
	"iter"
	"maps"
	"sync"
	"time"
)

const (
	// asideFor is how long a target is tried after all others once a dial to it has failed.
	// Then one connection dials it.
	asideFor = 10 * time.Second
	// maxAside bounds the targets of a front that are set aside. Further ones are not.
	maxAside = 1024
)

// aside are the targets of a front that are set aside. Each front has its own, so that
// one Service's endpoints do not influence another's. The zero value has none.
type aside struct {
	mu    sync.Mutex // guards the following
	until map[string]time.Time
}

// order yields the targets that are set aside last, and at most maxTries of them.
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

// turn reports whether target is tried now. When asideFor has passed it returns true
// once: that connection dials the target, and for others it stays aside until the dial
// succeeds.
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

// failed sets target aside, and reports whether that is new.
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

// worked removes target from those set aside.
func (a *aside) worked(target string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.until, target)
}
