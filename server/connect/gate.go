// A gate counts who is inside, and can be shut.

package connect

import "sync"

// A gate's zero value is open.
type gate struct {
	mu     sync.Mutex
	inside int           // guarded by mu
	empty  chan struct{} // guarded by mu; set once the gate is shut
}

// enter returns false once the gate is shut.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.empty != nil {
		return false
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.empty != nil {
		close(g.empty)
	}
}

// wait shuts the gate and returns once nobody is inside. It is called once.
func (g *gate) wait() {
	g.mu.Lock()
	g.empty = make(chan struct{})
	if g.inside == 0 {
		close(g.empty)
	}
	empty := g.empty
	g.mu.Unlock()
	<-empty
}
