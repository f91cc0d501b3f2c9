// The registry: which session serves which node.

package server

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// maxFenced is how many superseded instances of a node are remembered while it
// is connected.
const maxFenced = 16

// A member is a session that has been admitted.
type member struct {
	id      uint64
	node    string
	hello   tunnel.Hello
	session tunnel.Session
	control *tunnel.Control
	addr    net.Addr
	since   time.Time
	dialed  tally // open streams that the hub opened
	opened  tally // open streams that the agent opened

	// ousted is done, with the reason, when a newer session has taken over.
	ousted context.Context
	oust   context.CancelCauseFunc
}

// leaving says whether the agent has announced that it is about to go.
func (m *member) leaving() bool {
	select {
	case <-m.control.Draining():
		return true
	default:
		return false
	}
}

// A verdict is what to do with a session that says hello.
type verdict int

const (
	admit     verdict = iota // nobody is there
	reconnect                // the same agent, again: it has lost the older session
	takeover                 // another instance: it was restarted, or cloned
	stale                    // an older session of the same agent, arriving late
	fenced                   // an instance that has been superseded by the one that is there
)

// judge decides. It is given who is there, which instances it has superseded,
// and who knocks.
func judge(there *tunnel.Hello, superseded []uint64, knocks tunnel.Hello) verdict {
	switch {
	case there == nil:
		return admit
	case there.Instance == knocks.Instance && knocks.Sequence > there.Sequence:
		return reconnect
	case there.Instance == knocks.Instance:
		return stale
	case slices.Contains(superseded, knocks.Instance):
		return fenced
	default:
		return takeover
	}
}

// An entry is what is known of a connected node.
type entry struct {
	current    *member
	superseded []uint64 // instances, oldest first
}

type registry struct {
	mu      sync.Mutex // guards the following
	nodes   map[string]*entry
	changed chan struct{} // closed at the next change
}

// attach puts m in its place if it may have it and returns the member that it
// replaces or that is in its way.
func (r *registry) attach(m *member) (verdict, *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes == nil {
		r.nodes = make(map[string]*entry)
	}
	e := r.nodes[m.node]
	if e == nil {
		e = new(entry)
	}
	var there *tunnel.Hello
	if e.current != nil {
		there = &e.current.hello
	}
	v, old := judge(there, e.superseded, m.hello), e.current
	switch v {
	case stale, fenced:
		return v, old
	case takeover:
		e.superseded = append(e.superseded, old.hello.Instance)
		if len(e.superseded) > maxFenced {
			e.superseded = slices.Delete(e.superseded, 0, 1)
		}
	}
	e.current = m
	r.nodes[m.node] = e
	r.notifyLocked()
	return v, old
}

// detach takes m out, unless another has its place already.
func (r *registry) detach(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.nodes[m.node]; e != nil && e.current == m {
		delete(r.nodes, m.node)
		r.notifyLocked()
	}
}

func (r *registry) find(node string) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.nodes[node]; e != nil {
		return e.current
	}
	return nil
}

func (r *registry) all() []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*member, 0, len(r.nodes))
	for _, e := range r.nodes {
		all = append(all, e.current)
	}
	return all
}

func (r *registry) notifyLocked() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// next is closed at the next change.
func (r *registry) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}
