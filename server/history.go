// History: the latest state changes of each node's session, with their causes.

package server

import (
	"container/list"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// maxChanges bounds the changes that are kept for each node.
	maxChanges = 16
	// defaultMaxGone is how many nodes without a session are.
	defaultMaxGone = 20_000
)

// A Change is a state change of a node's session.
type Change struct {
	// Number counts the node's changes at this hub, from 1.
	Number uint64
	At     time.Time
	State  State
	Cause  Cause  // of Parked and Detached
	Err    string // the error's text
	// Heard is when data last arrived from the agent before At. Zero if the transport does
	// not report it.
	Heard     time.Time
	Session   uint64 // its ID; zero if the agent was refused before
	Transport string
	Addr      string // the agent's remote address
}

// An Observation is the hub's record of a node. Its Change is the latest; while
// the node is attached, Heard, Transport and Addr are as of now.
type Observation struct {
	Node string
	Change
	// Connected is when the latest session began.
	Connected time.Time
	// Instance is the number of the agent's process.
	Instance uint64
	// Window is the detach window of the session; zero if it cannot be parked.
	Window time.Duration
	RTT    time.Duration // the latest; zero if unknown
	// Parks and Resumes are the latest session's.
	Parks, Resumes uint64
	Draining       bool // the agent announced that it leaves
	// Superseded are the instances that others have superseded.
	Superseded []uint64
	// Changes are the latest 16, oldest first.
	Changes []Change
}

// A record is the state that is kept for a node.
type record struct {
	member    *member // nil once it has ended
	count     uint64
	changes   []Change // never empty
	seen      Observation
	place     *list.Element // in gone; nil while there is a session
	forgotten bool          // deleted once the session has ended
}

func (r *record) latest() *Change { return &r.changes[len(r.changes)-1] }

// add appends c.
func (r *record) add(c Change) {
	r.count++
	c.Number = r.count
	if len(r.changes) == maxChanges {
		r.changes = slices.Delete(r.changes, 0, 1)
	}
	r.changes = append(r.changes, c)
}

// A history keeps the changes of all nodes. Sessions report parking while they hold their
// own lock, so history calls only followers.Tell and a registry, which asks no session, while it holds mu.
type history struct {
	maxGone   int
	followers Followers

	mu    sync.Mutex // guards the following
	nodes map[string]*record
	gone  *list.List // names of nodes without a session, the longest gone first
}

func newHistory(maxGone int) *history {
	return &history{
		maxGone: maxGone, nodes: make(map[string]*record), gone: list.New(),
	}
}

// recordLocked is the node's record, or a new one without any change.
func (h *history) recordLocked(node string) *record {
	r := h.nodes[node]
	if r == nil {
		r = new(record)
		h.nodes[node] = r
	}
	return r
}

// watch subscribes to the state of m's session.
func (h *history) watch(m *member) {
	m.session.Tell(func(l tunnel.LinkState) {
		h.mu.Lock()
		defer h.mu.Unlock()
		m.linkState = l
		h.linkStateLocked(m)
	})
}

// attach records that m gets its node's dials since at, if it still does: current returns
// the session that does.
func (h *history) attach(m *member, at time.Time, current func(node string) *member) {
	heard := at
	if l := m.observe(); !l.Heard.IsZero() {
		heard = l.Heard
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if current(m.node) != m {
		return
	}
	r := h.recordLocked(m.node)
	if r.place != nil {
		h.gone.Remove(r.place)
		r.place = nil
	}
	r.member, r.forgotten = m, false
	r.seen = Observation{Node: m.node, Connected: m.since, Instance: m.hello.Instance}
	r.add(Change{At: at, State: Attached, Heard: heard, Session: m.id, Transport: m.transport, Addr: m.addr.String()})
	h.followers.Tell(m.node)
	h.linkStateLocked(m)
}

// linkStateLocked records a state that m's session reported.
func (h *history) linkStateLocked(m *member) {
	r := h.nodes[m.node]
	if r == nil || r.member != m {
		return
	}
	c := *r.latest()
	was, parked, why := c.State == Parked, !m.linkState.Parked.IsZero(), causeOf(m.linkState.Cause)
	if parked == was && (!parked || why == c.Cause) {
		return
	}
	c.At, c.State, c.Cause, c.Err = time.Now(), Attached, 0, ""
	if parked {
		c.State, c.Cause, c.Err = Parked, why, text(m.linkState.Cause)
		if !was { // or the cause was reported later
			c.At = m.linkState.Parked
		}
	}
	c.Heard = m.linkState.Heard
	if m.linkState.Addr != nil {
		c.Addr = m.linkState.Addr.String()
	}
	r.add(c)
	h.followers.Tell(m.node)
}

// end records why m ended; a nil err means that the hub drained.
func (h *history) end(m *member, err error) {
	last := m.observe()
	why, said := m.ending(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[m.node]
	if r == nil || r.member != m {
		return
	}
	c := *r.latest()
	if c.State != Parked {
		c.Heard = last.Heard
	} else if !why.deliberate() { // it was lost when it was parked
		why = c.Cause
	}
	c.At, c.State, c.Cause, c.Err = time.Now(), Detached, why, said
	r.add(c)
	r.member, r.seen = nil, last
	h.appendGoneLocked(m.node, r)
	h.followers.Tell(m.node)
}

// refuse records that an authenticated agent of node was refused.
func (h *history) refuse(node, addr string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.recordLocked(node)
	if r.member != nil {
		return // another agent's, which goes on
	}
	c := Change{At: time.Now(), State: Detached, Cause: Refused, Err: text(err), Addr: addr}
	if len(r.changes) > 0 {
		if l := r.latest(); l.Cause == c.Cause && l.Err == c.Err {
			return // it tries again and again
		}
	}
	r.seen.Node = node
	r.add(c)
	if r.place == nil {
		h.appendGoneLocked(node, r)
	}
	h.followers.Tell(node)
}

// appendGoneLocked appends r to gone and deletes the oldest ones above the limit.
func (h *history) appendGoneLocked(node string, r *record) {
	if r.forgotten {
		delete(h.nodes, node)
		return
	}
	r.place = h.gone.PushBack(node)
	for h.gone.Len() > h.maxGone {
		oldest := h.gone.Front()
		name, _ := h.gone.Remove(oldest).(string)
		delete(h.nodes, name)
		h.followers.Tell(name)
	}
}

func (h *history) forget(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.nodes[node]
	switch {
	case r == nil:
	case r.member != nil:
		r.forgotten = true
	default:
		h.gone.Remove(r.place)
		delete(h.nodes, node)
		h.followers.Tell(node)
	}
}

// observe returns the Observation of node.
func (h *history) observe(node string) (Observation, bool) {
	h.mu.Lock()
	r := h.nodes[node]
	if r == nil {
		h.mu.Unlock()
		return Observation{}, false
	}
	o, m := r.seen, r.member
	o.Change, o.Changes = *r.latest(), slices.Clone(r.changes)
	h.mu.Unlock()
	if m == nil {
		return o, true
	}
	return merged(o, m.observe()), true
}

// merged is the record with the current values of its session.
func merged(kept, now Observation) Observation {
	heard, addr := now.Heard, now.Addr
	now.Change, now.Changes = kept.Change, kept.Changes
	if now.State == Attached {
		now.Heard = heard
		if addr != "" {
			now.Addr = addr
		}
	}
	return now
}

// names are those of all nodes, sorted.
func (h *history) names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.nodes))
}

// observe returns the Observation of m without its changes.
func (m *member) observe() Observation {
	o := Observation{
		Node: m.node, Connected: m.since, Instance: m.hello.Instance, RTT: m.control.RTT(), Draining: m.leaving(),
	}
	l := m.session.Link()
	o.Window, o.Parks, o.Resumes, o.Heard = l.Window, l.Parks, l.Resumes, l.Heard
	if l.Addr != nil {
		o.Addr = l.Addr.String()
	}
	return o
}

// ending is why m ended, from its control stream and its session, which may report
// different errors; nil means that the hub drained.
func (m *member) ending(err error) (Cause, string) {
	if err == nil {
		return Drained, "the server shut down"
	}
	below := context.Cause(m.session.Context())
	switch {
	case causeOf(err).deliberate():
		return causeOf(err), text(err)
	case m.leaving():
		return Left, text(err)
	case below != nil && !errors.Is(below, tunnel.ErrSessionClosed):
		return causeOf(below), text(below)
	default:
		return causeOf(err), text(err)
	}
}

// Observe returns the Observation of a node that has, or had, a session here.
func (h *Hub) Observe(node string) (Observation, bool) {
	o, ok := h.history.observe(node)
	o.Superseded = h.registry.superseded(node)
	return o, ok
}

// Observations returns those of all known nodes, sorted by name.
func (h *Hub) Observations() []Observation {
	var all []Observation
	for _, name := range h.history.names() {
		if o, ok := h.history.observe(name); ok {
			all = append(all, o)
		}
	}
	return all
}

// Forget deletes the record of a deleted node: at once if it has no session, else when that
// ends. If it has none, a superseded agent may connect again at once.
func (h *Hub) Forget(node string) {
	h.registry.forget(node)
	h.history.forget(node)
}
