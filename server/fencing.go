// Fencing: which of several agents with one identity is the node.

package server

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// maxFenced is how many superseded instances of a node are remembered.
	maxFenced = 16
	// DefaultTakeBack is three times as long as controllers wait for a silent node
	// before they replace its pods elsewhere: nobody counts on them running only
	// once any more, and links that come back at all have long been back.
	DefaultTakeBack = 15 * time.Minute
	// takeBackLeft is that time after an agent that left by itself. One that was
	// only restarted, its pods running on, is back before that.
	takeBackLeft = time.Minute
	// memory is how many times as long a node without a session is remembered, so
	// that an agent that is taken back is known to come after the other one.
	memory = 4
	// fencedAgain is when an agent that is turned away is asked to come back: so it
	// is never long before it learns that it may.
	fencedAgain = 40 * time.Second
)

// A verdict is what to do with a session that says hello.
type verdict int

const (
	admit     verdict = iota // nobody is there
	reconnect                // the same agent, again: it has lost the older session, or moves to this one
	takeover                 // another instance: it was restarted, or cloned
	stale                    // an older session of the same agent, arriving late
	fenced                   // an instance that has been superseded by the one that is there
	barred                   // an instance that has been superseded by one that is not there, but may run pods
)

// refuses says whether the newcomer gets no place.
func (v verdict) refuses() bool { return v == stale || v == fenced || v == barred }

// judge decides. It is given who is there, which instances have been superseded,
// for how long they are turned away once nobody is there, and who says hello.
func judge(there *tunnel.Hello, superseded []uint64, barredFor time.Duration, hello tunnel.Hello) verdict {
	old := slices.Contains(superseded, hello.Instance)
	switch {
	case there == nil && old && barredFor > 0:
		return barred
	case there == nil:
		return admit
	case there.Instance == hello.Instance && hello.Sequence > there.Sequence:
		return reconnect
	case there.Instance == hello.Instance:
		return stale
	case old:
		return fenced
	default:
		return takeover
	}
}

// An absence is what is remembered of a node without a session.
type absence struct {
	instance uint64 // the one that was there
	addr     string // where it was
	since    time.Time
	takeBack time.Time // until when the instances that it has superseded are turned away
}

// supersede notes that by has the node now, and not old.
func (e *entry) supersede(old, by uint64) {
	e.superseded = slices.DeleteFunc(e.superseded, func(i uint64) bool { return i == by || i == old })
	e.superseded = append(e.superseded, old)
	if len(e.superseded) > maxFenced {
		e.superseded = slices.Delete(e.superseded, 0, 1)
	}
}

// buryLocked remembers an entry of which m was the last session.
func (r *registry) buryLocked(e *entry, m *member, now time.Time) {
	after := r.takeBack
	if e.left {
		after = min(after, takeBackLeft)
	}
	e.gone = &absence{instance: m.hello.Instance, addr: m.where(), since: now, takeBack: now.Add(after)}
	e.place = r.gone.PushBack(m.node)
	r.expireLocked(now)
}

// expireLocked forgets what has been remembered for long enough, and the oldest of
// what is too much.
func (r *registry) expireLocked(now time.Time) {
	for oldest := r.gone.Front(); oldest != nil; oldest = r.gone.Front() {
		name, _ := oldest.Value.(string)
		if r.gone.Len() <= r.maxGone && now.Sub(r.nodes[name].gone.since) < memory*r.takeBack {
			return
		}
		r.gone.Remove(oldest)
		delete(r.nodes, name)
	}
}

// unburyLocked makes e an entry with sessions again: one of the instance by.
func (r *registry) unburyLocked(e *entry, by uint64) {
	if e.gone == nil {
		return
	}
	if e.gone.instance != by {
		e.supersede(e.gone.instance, by)
	}
	r.gone.Remove(e.place)
	e.gone, e.place, e.left = nil, nil, false
}

// forget forgets a node that is no more, unless it is connected: nothing is left
// that could run twice.
func (r *registry) forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.nodes[node]; e != nil && e.gone != nil {
		r.gone.Remove(e.place)
		delete(r.nodes, node)
	}
	r.wakeLocked(node)
}

// where is the address that m's packets come from.
func (m *member) where() string {
	return cmp.Or(m.session.Link().Addr, m.addr).String()
}

// turnAway says and logs why m may not be the node, while the agent there is.
func (h *Hub) turnAway(m, there *member) error {
	h.metrics.clones.Inc()
	state := "is connected"
	if l := there.session.Link(); !l.Parked.IsZero() {
		state = "has been out of reach since " + l.Parked.UTC().Format(time.RFC3339)
	}
	h.log.Warn("two agents use one node's identity: give one of them an identity of its own",
		"node", m.node, "refused", m.addr.String(), "preferred", there.where(), "state", state)
	return &refusal{tunnel.Replaced, min(h.config.TakeBack, fencedAgain), fmt.Sprintf(
		"another agent with this node's identity, at %s, took over from this one, at %s, and %s", there.where(), m.addr, state)}
}

// turnAwayFor is turnAway while nobody is the node, but the one that was may still
// run its pods.
func (h *Hub) turnAwayFor(m *member, gone *absence) error {
	h.metrics.clones.Inc()
	back := gone.takeBack.UTC().Format(time.RFC3339)
	h.log.Warn("an agent whose node another one took over is not taken back yet: the other one may still run the pods",
		"node", m.node, "refused", m.addr.String(), "preferred", gone.addr,
		"gone", time.Since(gone.since).Round(time.Second), "until", back)
	return &refusal{tunnel.Replaced, min(time.Until(gone.takeBack), fencedAgain), fmt.Sprintf(
		"another agent with this node's identity, at %s, took over from this one, at %s, and is gone, but may still run its pods: this one is taken back from %s on, or at once if it is restarted",
		gone.addr, m.addr, back)}
}

// superseded are the instances of a node that others have superseded.
func (r *registry) superseded(node string) []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.nodes[node]; e != nil {
		return slices.Clone(e.superseded)
	}
	return nil
}

// learn takes note of what another server knows of a node, and returns the sessions that
// have lost their places by it: those of an agent that another one has superseded there.
func (r *registry) learn(o *Observation) []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.nodes[o.Node]
	if e == nil {
		return nil
	}
	here := e.newest()
	lost := here != nil && here.hello.Instance != o.Instance && o.State != Detached && !slices.Contains(e.superseded, o.Instance) &&
		!slices.Contains(o.Superseded, o.Instance) && (slices.Contains(o.Superseded, here.hello.Instance) || o.Connected.After(here.since))
	for _, old := range o.Superseded {
		if here == nil || old != here.hello.Instance {
			e.supersede(old, 0) // by whom is told by who is there
		}
	}
	if !lost {
		return nil
	}
	e.supersede(here.hello.Instance, o.Instance)
	return e.members()
}

// Learn takes note of what another server knows of a node: an agent that another one has
// superseded there is superseded here. Servers' clocks say which agent came last. Dials that
// wait for the node look again; an Observation of the node's name alone says that the other
// server has forgotten it.
func (h *Hub) Learn(o *Observation) {
	h.registry.wake(o.Node)
	lost := h.registry.learn(o)
	if len(lost) == 0 {
		return
	}
	h.metrics.replaced.WithLabelValues("takeover").Inc()
	h.log.Info("another instance of the node takes over, at another server", "node", o.Node, "new", o.Addr, "old", lost[0].where())
	dismiss(lost, fmt.Errorf("%w: another agent with this node's identity connected from %s to another server and takes over from this one, at %s",
		tunnel.Replaced, o.Addr, lost[0].where()))
}
