// Package fence keeps two agents with one identity from doing the same work.
//
// Two machines have one identity when one is a copy of the other's disk. The server
// serves the one that has connected last and turns the other away. The one turned
// away puts its Fence up; whatever would act for the node beside the other agent
// (its heartbeats, its pods) runs behind the Fence and stops while it is up. When
// the server takes the agent back, because the other one has gone, the Fence comes
// down and work begins again.
//
// It decides nothing: who is to be fenced is the server's word.
package fence

import (
	"context"
	"sync"
)

// A Fence is down at first. The zero value is good, and a nil *Fence is one that is
// never up. All methods may be called at the same time.
type Fence struct {
	mu      sync.Mutex // guards the following
	up      bool
	changed chan struct{} // closed, and replaced, at each change; nil while nobody waits
}

// Set puts the fence up or takes it down. It does not block.
func (f *Fence) Set(up bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.up == up {
		return
	}
	f.up = up
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// State tells whether the fence is up, and returns a channel that is closed once it
// is otherwise. That of a nil Fence is nil.
func (f *Fence) State() (up bool, changed <-chan struct{}) {
	if f == nil {
		return false, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.up, f.changed
}

// Up tells whether the fence is up.
func (f *Fence) Up() bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.up
}

// While runs work whenever the fence is down, until ctx is done: work's context is
// done once the fence goes up, and work is begun again once it is down. Work that
// returns although its context is not done has finished for good. While returns
// after work has.
func (f *Fence) While(ctx context.Context, work func(ctx context.Context)) {
	for ctx.Err() == nil {
		up, changed := f.State()
		if up {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		if !until(ctx, changed, work) {
			return
		}
	}
}

// until runs work until it returns, with a context that is done once stop is
// closed. It reports whether work was stopped that way.
func until(ctx context.Context, stop <-chan struct{}, work func(ctx context.Context)) bool {
	inner, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	stopped := make(chan struct{})
	watch.Go(func() {
		select {
		case <-stop:
			close(stopped)
			cancel()
		case <-inner.Done():
		}
	})
	work(inner)
	select {
	case <-stopped:
		return true
	default:
		return false
	}
}
