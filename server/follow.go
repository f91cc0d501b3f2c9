// Following: notification of changes of nodes.

package server

import "context"

// maxDirty bounds the names that are kept for a busy follower. Above it the follower is
// given all nodes.
const maxDirty = 1 << 17

// A follower is one call of Follow.
type follower struct {
	dirty map[string]struct{} // guarded by the history's mu
	all   bool                // likewise: more than maxDirty changed
	wake  chan struct{}       // holds a token while there are changes
}

// notifyLocked tells followers of node.
func (h *history) notifyLocked(node string) {
	for f := range h.followers {
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

// take returns and clears the changes.
func (h *history) take(f *follower) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	if f.all {
		for name := range h.nodes {
			names = append(names, name)
		}
	} else {
		for name := range f.dirty {
			names = append(names, name)
		}
	}
	clear(f.dirty)
	f.all = false
	return names
}

// Follow calls f with the names of nodes whose Observation may have changed: first with all
// known nodes, then with those that changed since the last call, each once, until ctx is
// done. Changes do not wait for f; names are collected while it runs.
func (h *Hub) Follow(ctx context.Context, f func(nodes []string)) error {
	x := &follower{dirty: make(map[string]struct{}), all: true, wake: make(chan struct{}, 1)}
	x.wake <- struct{}{}
	h.history.mu.Lock()
	h.history.followers[x] = struct{}{}
	h.history.mu.Unlock()
	defer func() {
		h.history.mu.Lock()
		defer h.history.mu.Unlock()
		delete(h.history.followers, x)
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-x.wake:
			if names := h.history.take(x); len(names) > 0 {
				f(names)
			}
		}
	}
}
