// Following: being told of what becomes of nodes.

package server

import "context"

// maxDirty is how many names a follower that is busy gathers before it is told of
// all nodes instead.
const maxDirty = 1 << 17

// A follower is somebody who wants to know of changes.
type follower struct {
	dirty map[string]struct{} // guarded by the history's mu
	all   bool                // likewise: too many to be named
	wake  chan struct{}       // holds a token while there is something to tell
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

// take returns what there is to tell.
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

// Follow calls f with the names of nodes that Observe may say something new of: at
// first all that are known, then those that have changed since f was last called,
// each once, until ctx is done. While f runs nobody waits for it; names gather.
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
