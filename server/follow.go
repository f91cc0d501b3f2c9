// Following: notification of changes of nodes.

package server

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// maxDirty bounds the names that are kept for a busy follower. Above it the follower is
// given all nodes.
const maxDirty = 1 << 17

// Followers are notified of changed nodes. The zero value has no follower. Its methods may be
// called concurrently.
type Followers struct {
	mu  sync.Mutex // guards the following, and the followers
	all map[*follower]struct{}
}

// A follower is one call of Follow.
type follower struct {
	dirty map[string]struct{}
	all   bool          // more than maxDirty changed
	wake  chan struct{} // holds a token while there are changes
}

// Tell notifies the followers that nodes have changed. It does not wait for them.
func (s *Followers) Tell(nodes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.all {
		for _, node := range nodes {
			if len(f.dirty) >= maxDirty {
				f.all = true
				clear(f.dirty)
			}
			if !f.all {
				f.dirty[node] = struct{}{}
			}
			select {
			case f.wake <- struct{}{}:
			default:
			}
		}
	}
}

// take returns and clears the changes.
func (s *Followers) take(f *follower, known func() []string) []string {
	s.mu.Lock()
	names, all := slices.Collect(maps.Keys(f.dirty)), f.all
	clear(f.dirty)
	f.all = false
	s.mu.Unlock()
	if all {
		return known()
	}
	return names
}

// Follow calls f with names of nodes: first with all of known, also if there are none, then with
// those that changed since the last call, each once, until ctx is done. Changes do not wait for f; names are
// collected while it runs.
func (s *Followers) Follow(ctx context.Context, known func() []string, f func(nodes []string)) {
	x := &follower{dirty: make(map[string]struct{}), all: true, wake: make(chan struct{}, 1)}
	x.wake <- struct{}{}
	s.mu.Lock()
	if s.all == nil {
		s.all = make(map[*follower]struct{})
	}
	s.all[x] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, x)
	}()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
			if names := s.take(x, known); len(names) > 0 || first {
				f(names)
			}
		}
	}
}

// Follow is Followers.Follow with the nodes whose Observation may have changed. It returns nil.
func (h *Hub) Follow(ctx context.Context, f func(nodes []string)) error {
	h.history.followers.Follow(ctx, h.history.names, f)
	return nil
}
