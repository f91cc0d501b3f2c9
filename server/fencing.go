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
	// maxFenced bounds the superseded instances that are kept for each node.
	maxFenced = 16
	// DefaultTakeBack is three times the period after which controllers replace the pods of
	// a silent node.
	DefaultTakeBack = 15 * time.Minute
	// takeBackLeft is that time after an agent that sent a goodbye. A restarted agent, whose
	// pods keep running, reconnects before.
	takeBackLeft = time.Minute
	// memory is the factor by which a node without a session is remembered longer than
	// that, so that the record of an accepted agent's supersession is kept.
	memory = 4
	// fencedAgain is the retry delay of a refused agent.
	fencedAgain = 40 * time.Second
)

// A verdict is the decision on a session that sent its hello.
type verdict int

const (
	admit     verdict = iota // the node has no session
	reconnect                // the same instance: it lost the older session, or migrates to this one
	takeover                 // another instance: the agent was restarted, or cloned
	stale                    // an older session of the same instance that arrived late
	fenced                   // an instance that the connected one has superseded
	barred                   // an instance superseded by one that is not connected but may run pods
)

// refuses reports whether the session is refused.
func (v verdict) refuses() bool { return v == stale || v == fenced || v == barred }

// judge decides, from the node's session, its superseded instances, how long those are
// refused after that session has ended, and the new session.
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

// An absence is the record of a node without a session.
type absence struct {
	instance uint64    // the last one
	addr     string    // its address
	began    time.Time // when its last session did
	since    time.Time
	takeBack time.Time // until when the instances that it superseded are refused
}

// supersede records that instance by has replaced old.
func (e *entry) supersede(old, by uint64) {
	e.superseded = slices.DeleteFunc(e.superseded, func(i uint64) bool { return i == by || i == old })
	e.superseded = append(e.superseded, old)
	if len(e.superseded) > maxFenced {
		e.superseded = slices.Delete(e.superseded, 0, 1)
	}
}

// setAbsentLocked keeps an entry whose last session was m.
func (r *registry) setAbsentLocked(e *entry, m *member, now time.Time) {
	after := r.takeBack
	if e.left {
		after = min(after, takeBackLeft)
	}
	e.gone = &absence{instance: m.hello.Instance, addr: m.where(), began: m.since, since: now, takeBack: now.Add(after)}
	e.place = r.gone.PushBack(m.node)
	r.expireLocked(now)
}

// expireLocked deletes expired absences, and the oldest ones above the limit.
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

// setPresentLocked makes e an entry with sessions again, of instance by.
func (r *registry) setPresentLocked(e *entry, by uint64) {
	if e.gone == nil {
		return
	}
	e.superseded = slices.DeleteFunc(e.superseded, func(i uint64) bool { return i == by }) // taken back
	if e.gone.instance != by {
		e.supersede(e.gone.instance, by)
	}
	r.gone.Remove(e.place)
	e.gone, e.place, e.left = nil, nil, false
}

// forget deletes the record of a deleted node, unless it is connected.
func (r *registry) forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.nodes[node]; e != nil && e.gone != nil {
		r.gone.Remove(e.place)
		delete(r.nodes, node)
	}
	r.wakeLocked(node)
}

// where is the remote address of m.
func (m *member) where() string {
	return cmp.Or(m.session.Link().Addr, m.addr).String()
}

// refuseFenced refuses m and logs why: another instance is connected.
func (h *Hub) refuseFenced(m, there *member) error {
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

// refuseBarred refuses m because the last instance, which is not connected, may still run
// the node's pods.
func (h *Hub) refuseBarred(m *member, gone *absence) error {
	h.metrics.clones.Inc()
	back := gone.takeBack.UTC().Format(time.RFC3339)
	h.log.Warn("an agent whose node another one took over is not taken back yet: the other one may still run the pods",
		"node", m.node, "refused", m.addr.String(), "preferred", gone.addr,
		"gone", time.Since(gone.since).Round(time.Second), "until", back)
	return &refusal{tunnel.Replaced, min(time.Until(gone.takeBack), fencedAgain), fmt.Sprintf(
		"another agent with this node's identity, at %s, took over from this one, at %s, and is gone, but may still run its pods: this one is taken back from %s on, or at once if it is restarted",
		gone.addr, m.addr, back)}
}

// superseded returns the superseded instances of a node.
func (r *registry) superseded(node string) []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.nodes[node]; e != nil {
		return slices.Clone(e.superseded)
	}
	return nil
}

// takenBack reports whether instance old, the last one here, was accepted after the instance
// of o connected elsewhere, which has no session any more.
func (e *entry) takenBack(old uint64, o *Observation) bool {
	return e.gone != nil && e.gone.instance == old && o.State == Detached && !o.Connected.After(e.gone.began)
}

// learn merges another server's observation of a node, and returns the sessions that it
// ends: those of an instance that was superseded there.
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
		switch {
		case here != nil && old == here.hello.Instance: // the current instance superseded it
		case here == nil && (old == o.Instance || e.takenBack(old, o)): // it has been accepted since
		default:
			e.supersede(old, 0)
		}
	}
	if !lost {
		return nil
	}
	e.supersede(here.hello.Instance, o.Instance)
	return e.members()
}

// Learn merges another server's observation of a node: an instance that was superseded
// there is superseded here. Otherwise the latest to connect is preferred; the times in o are
// of this server's clock. Dials that wait for the node retry. An Observation with only a node
// name means that the other server has no record of it.
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
