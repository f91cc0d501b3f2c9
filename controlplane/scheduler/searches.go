package scheduler

// Searches: the pods that wait for a search for pods to remove, in turns of namespaces.

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

const (
	// maxSearches is how many pods of a namespace wait for a search at once.
	maxSearches = 100
	// restShare is how many times as long as a search took the next one waits, so that
	// most of the time is for placing pods.
	restShare = 4
)

// searchSkipped is what a pod is told that is not searched for.
const searchSkipped = "not looked for, as 100 pods of the namespace with the same or a higher priority wait for that; it is tried again"

// searches holds each pod once. Namespaces take turns; in a namespace the highest priority
// is first, and then who came first.
type searches struct {
	wake chan struct{} // has an element if there may be something to do

	mu    sync.Mutex
	of    map[string][]binding // by namespace
	turns []string             // namespaces that have pods here, whose turn it is first
}

func newSearches() *searches {
	return &searches{wake: make(chan struct{}, 1), of: make(map[string][]binding)}
}

// add takes in a pod that fits nowhere, in place of what was known of it. If there are too
// many pods of its namespace then, one is left out and returned.
func (s *searches) add(b binding) (out binding, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := b.pod.pod.Namespace
	list, had := s.of[ns]
	if !had {
		s.turns = append(s.turns, ns)
	}
	same := slices.IndexFunc(list, func(have binding) bool { return have.pod.name() == b.pod.name() })
	if same >= 0 {
		list[same] = b // it keeps its place
		return binding{}, false
	}
	at, _ := slices.BinarySearchFunc(list, b, func(have, b binding) int {
		return cmp.Or(cmp.Compare(b.pod.priority(), have.pod.priority()), -1) // behind its equals
	})
	list = slices.Insert(list, at, b)
	if full = len(list) > maxSearches; full {
		out, list = list[maxSearches], list[:maxSearches]
	}
	s.of[ns] = list
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return out, full
}

// poll takes the pod whose turn it is.
func (s *searches) poll() (b binding, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.turns) == 0 {
		return binding{}, false
	}
	ns := s.turns[0]
	list := s.of[ns]
	b = list[0]
	s.turns = slices.Delete(s.turns, 0, 1)
	if len(list) == 1 {
		delete(s.of, ns)
	} else {
		s.of[ns] = slices.Delete(list, 0, 1)
		s.turns = append(s.turns, ns)
	}
	return b, true
}

// take waits for a pod. ok is false if ctx is done.
func (s *searches) take(ctx context.Context) (b binding, ok bool) {
	for ctx.Err() == nil {
		if b, ok := s.poll(); ok {
			return b, true
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		}
	}
	return binding{}, false
}
