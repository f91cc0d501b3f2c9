// The registry: which session serves which node.

package server

import (
	"container/list"
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// keepsKey is the metadata of the hello in which a migrating agent lists the older sessions
// that it keeps.
const keepsKey = "keeps"

// serverKey is the metadata of the welcome by which an agent knows that two of its sessions
// are with one hub.
const serverKey = "server"

// maxOlder bounds the older sessions of a node that continue beside its newest.
const maxOlder = 2

// A member is a session that has been admitted.
type member struct {
	id        uint64
	node      string
	hello     tunnel.Hello
	session   tunnel.Session
	transport string
	waits     bool          // for its agent's answer; owned by the goroutine that serves it
	seated    chan struct{} // of one that waits: closed once it does no more and is registered
	settled   func()        // ends the handshake for admission; may be called again
	control   *tunnel.Control
	addr      net.Addr
	since     time.Time
	traffic

	dialsMade, dialsFailed atomic.Uint64

	linkState tunnel.LinkState // the latest state that the session reported; guarded by the history's mu

	// turned holds a token if the goroutine that serves the session must check it: demoted
	// has changed, it is dismissed, or the server leaves.
	turned chan struct{}
	why    atomic.Pointer[error] // of its dismissal or its end; nil before
	// expelled says that m must end at once, and interrupt then ends the wait of the goroutine
	// that serves the session, if that waits for something else than turned.
	expelled  atomic.Bool
	interrupt atomic.Pointer[context.CancelFunc]

	// The registry's mu guards the following.
	demoted bool // a newer session gets the dials and this one continues
	closing bool // the agent was requested to close it: it gets no dials again
}

// turnLocked records whether m gets dials, and wakes the goroutine that serves it.
func (m *member) turnLocked(demoted bool) {
	m.demoted = demoted
	m.poke()
}

// poke wakes the goroutine that serves m.
func (m *member) poke() {
	select {
	case m.turned <- struct{}{}:
	default: // one is enough
	}
}

// dismiss ends m, unless it has been dismissed for another reason.
func (m *member) dismiss(why error) {
	m.ends(why)
	m.poke()
}

// expel is dismiss, and does not wait until the agent has read what is in flight.
func (m *member) expel(why error) {
	m.dismiss(why)
	m.expelled.Store(true)
	if interrupt := m.interrupt.Load(); interrupt != nil {
		(*interrupt)()
	}
}

// untilExpelled returns a context that is done once ctx is, or m is expelled. The caller calls
// cancel.
func (m *member) untilExpelled(ctx context.Context) (_ context.Context, cancel context.CancelFunc) {
	ctx, cancel = context.WithCancel(ctx)
	m.interrupt.Store(&cancel)
	if m.expelled.Load() {
		cancel()
	}
	return ctx, cancel
}

// ends records why m ends, unless that is known.
func (m *member) ends(why error) { m.why.CompareAndSwap(nil, &why) }

// usableLocked reports whether m may get dials again.
func (m *member) usableLocked() bool {
	return !m.closing && !m.leaving() && m.session.Context().Err() == nil
}

// leaving reports whether the agent announced that it leaves.
func (m *member) leaving() bool {
	select {
	case <-m.control.Draining():
		return true
	default:
		return false
	}
}

// kept returns the sequence numbers of the older sessions that the agent keeps: decimal,
// separated by commas, the latest first. Malformed numbers are ignored.
func kept(h tunnel.Hello) []uint64 {
	var all []uint64
	for text := range strings.SplitSeq(h.Meta[keepsKey], ",") {
		n, err := strconv.ParseUint(text, 10, 64)
		if err == nil && n < h.Sequence && len(all) < maxOlder {
			all = append(all, n)
		}
	}
	return all
}

// An entry is the registry's state for a node.
type entry struct {
	current    *member   // gets all dials; nil once it has ended and an older one has not
	older      []*member // demoted, newest first: their streams continue
	superseded []uint64  // instances, oldest first
	left       bool      // the agent announced that it leaves
	by         string    // the address of the instance elsewhere that has superseded the one here
	elsewhere  standing  // as learned last

	gone  *absence      // nil while there are sessions
	place *list.Element // in the registry's gone list, with gone
}

// newest is the session that a new one is compared with.
func (e *entry) newest() *member {
	if e.current == nil && len(e.older) > 0 {
		return e.older[0]
	}
	return e.current
}

// members are all of the entry's, newest first.
func (e *entry) members() []*member {
	all := make([]*member, 0, 1+len(e.older))
	if e.current != nil {
		all = append(all, e.current)
	}
	return append(all, e.older...)
}

type registry struct {
	takeBack time.Duration // for how long superseded instances are refused
	maxGone  int           // bounds the nodes without a session that are kept

	mu      sync.Mutex // guards the following; no session is asked for its Link while it is held
	nodes   map[string]*entry
	waiting map[string][]*member // sessions whose agents have not answered, newest first
	// draining are sessions that get no dials and go on until the server has stopped.
	draining map[string][]*member
	gone     list.List     // names of nodes without a session, the longest gone first
	changed  chan struct{} // closed at the next change

	awaited  map[string]*awaited // nodes for which dials wait
	awaiting int                 // how many do
}

// A seat is the result of attach for a new session.
type seat struct {
	verdict verdict
	// there is the newest session of the node before the new one; nil if there was none.
	there *member
	gone  absence // of a node without a session
	// waits reports that the session would replace another one and that its agent must answer
	// first.
	waits bool
	// dismissed are the sessions that were replaced, and demoted is the one that gets no
	// more dials; nil if there is none.
	dismissed []*member
	demoted   *member
}

// attach registers m if it is admitted and replaces no session. If it would replace one, m
// waits until settle.
func (r *registry) attach(m *member) seat {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes == nil {
		r.nodes, r.waiting, r.draining = make(map[string]*entry), make(map[string][]*member), make(map[string][]*member)
	}
	e, s := r.judgeLocked(m)
	switch {
	case s.verdict.refuses():
	case s.verdict == admit && (e.gone == nil || e.gone.instance == m.hello.Instance):
		r.seatLocked(e, m, &s)
	default:
		s.waits = true
		r.waiting[m.node] = slices.Insert(r.waiting[m.node], 0, m)
		r.notifyLocked(m.node)
	}
	return s
}

// settle registers m, which has waited, if it is still admitted.
func (r *registry) settle(m *member) seat {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dismissLocked(m)
	e, s := r.judgeLocked(m)
	if !s.verdict.refuses() {
		r.seatLocked(e, m, &s)
	}
	return s
}

// dismissLocked ends m's wait.
func (r *registry) dismissLocked(m *member) { remove(r.waiting, m) }

// remove removes m from the sessions of its node.
func remove(sessions map[string][]*member, m *member) {
	rest := slices.DeleteFunc(sessions[m.node], func(other *member) bool { return other == m })
	if len(rest) == 0 {
		delete(sessions, m.node)
		return
	}
	sessions[m.node] = rest
}

// judgeLocked returns the verdict on m, and its entry, which may be a new one.
func (r *registry) judgeLocked(m *member) (*entry, seat) {
	now := time.Now()
	r.expireLocked(now)
	e := r.nodes[m.node]
	if e == nil {
		e = new(entry)
	}
	var (
		there *tunnel.Hello
		s     = seat{there: e.newest()}
	)
	if s.there != nil {
		there = &s.there.hello
	}
	if e.gone != nil {
		s.gone = *e.gone
	}
	s.verdict = judge(there, e.superseded, r.barredFor(e, now), m.hello)
	return e, s
}

// seatLocked makes m the session of e that gets the dials, and records in s what happens to
// the others.
func (r *registry) seatLocked(e *entry, m *member, s *seat) {
	switch s.verdict {
	case admit:
		r.setPresentLocked(e, m.hello.Instance)
	case takeover:
		e.supersede(s.there.hello.Instance, m.hello.Instance)
		s.dismissed, e.older, e.left = e.members(), nil, false
	case reconnect:
		keeps, all := kept(m.hello), e.members()
		e.older = nil
		for _, old := range all {
			switch {
			case !slices.Contains(keeps, old.hello.Sequence):
				s.dismissed = append(s.dismissed, old)
				continue
			case old == e.current:
				s.demoted = old
				old.turnLocked(true)
			}
			e.older = append(e.older, old)
		}
	}
	e.current = m
	r.nodes[m.node] = e
	r.notifyLocked(m.node)
}

// detach unregisters m, unless it was replaced already. left says whether the agent
// announced that it leaves. If an older session gets the dials again, detach returns it.
func (r *registry) detach(m *member, left bool) (promoted *member) {
	return r.unregister(m, left, false)
}

// drain is detach of a session that goes on until the server has stopped. Until detach is called
// for it, membersOf returns it.
func (r *registry) drain(m *member, left bool) { r.unregister(m, left, true) }

func (r *registry) unregister(m *member, left, drains bool) (promoted *member) {
	addr, parked := m.where(), map[*member]bool{}
	for _, other := range r.membersOf(m.node) {
		parked[other] = !other.parked().IsZero()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dismissLocked(m)
	if remove(r.draining, m); drains {
		r.draining[m.node] = append(r.draining[m.node], m)
	}
	e := r.nodes[m.node]
	if e == nil || !slices.Contains(e.members(), m) {
		return nil
	}
	e.left = e.left || left
	e.older = slices.DeleteFunc(e.older, func(old *member) bool { return old == m })
	if e.current == m {
		promoted = e.promoteLocked(parked)
		e.current = promoted
		r.notifyLocked(m.node)
	}
	if e.newest() == nil {
		r.setAbsentLocked(e, m, addr, time.Now())
	}
	return promoted
}

// promoteLocked gives the dials to the newest usable older session, preferring one that is not
// parked.
func (e *entry) promoteLocked(parked map[*member]bool) *member {
	var best *member
	for _, m := range e.older {
		if !m.usableLocked() {
			continue
		}
		if !parked[m] {
			best = m
			break
		}
		if best == nil {
			best = m
		}
	}
	if best != nil {
		e.older = slices.DeleteFunc(e.older, func(m *member) bool { return m == best })
		best.turnLocked(false)
	}
	return best
}

// markClosing reports whether the agent may be requested to close m, which has no open
// stream, because another session gets the dials. From then on m gets no dials again.
func (r *registry) markClosing(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.closing = m.demoted || m.leaving()
	return m.closing
}

// isDemoted reports whether another session gets the dials of m's node.
func (r *registry) isDemoted(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return m.demoted
}

// find returns the session that gets the node's dials. If there is none it returns the
// newest of those that wait, or nil.
func (r *registry) find(node string) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.nodes[node]; e != nil && e.current != nil {
		return e.current
	}
	if waiting := r.waiting[node]; len(waiting) > 0 {
		return waiting[0]
	}
	return nil
}

// holder returns the node's registered session; nil if there is none.
func (r *registry) holder(node string) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.nodes[node]; e != nil {
		return e.current
	}
	return nil
}

// membersOf are all of a node's sessions.
func (r *registry) membersOf(node string) []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Concat(r.waiting[node], r.draining[node])
	if e := r.nodes[node]; e != nil {
		all = append(all, e.members()...)
	}
	return all
}

// everyone returns all sessions of all nodes.
func (r *registry) everyone() []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*member
	for _, e := range r.nodes {
		all = append(all, e.members()...)
	}
	for _, waiting := range r.waiting {
		all = append(all, waiting...)
	}
	return all
}

// all returns the sessions that get dials: one for each node.
func (r *registry) all() []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*member, 0, len(r.nodes))
	for _, e := range r.nodes {
		if e.current != nil {
			all = append(all, e.current)
		}
	}
	return all
}

// notifyLocked announces a change of node's sessions.
func (r *registry) notifyLocked(node string) {
	r.wakeLocked(node)
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
