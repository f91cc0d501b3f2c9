// Fencing: which of several agents with one identity is the node.

package server

import (
	"cmp"
	"fmt"
	"log/slog"
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
	fenced                   // an instance that the connected one, or one elsewhere, has superseded
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
	case old: // also of the session that is there: it is about to end
		return fenced
	case there.Instance == hello.Instance && hello.Sequence > there.Sequence:
		return reconnect
	case there.Instance == hello.Instance:
		return stale
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
	held     bool      // another server has a session of an instance that is not superseded
}

// barredFor is how long superseded instances are still refused.
func (r *registry) barredFor(e *entry, now time.Time) time.Duration {
	switch {
	case e.gone == nil:
		return 0
	case e.gone.held:
		return r.takeBack
	default:
		return e.gone.takeBack.Sub(now)
	}
}

// supersede records that instance by has replaced old.
func (e *entry) supersede(old, by uint64) {
	e.superseded = slices.DeleteFunc(e.superseded, func(i uint64) bool { return i == by || i == old })
	e.superseded = append(e.superseded, old)
	if len(e.superseded) > maxFenced {
		e.superseded = slices.Delete(e.superseded, 0, 1)
	}
}

// setAbsentLocked keeps an entry whose last session was m, from addr.
func (r *registry) setAbsentLocked(e *entry, m *member, addr string, now time.Time) {
	after := r.takeBack
	if e.left {
		after = min(after, takeBackLeft)
	}
	e.gone = &absence{instance: m.hello.Instance, addr: addr, began: m.since, since: now, takeBack: now.Add(after)}
	e.place = r.gone.PushBack(m.node)
	if slices.Contains(e.superseded, m.hello.Instance) { // by one elsewhere, of which the others have told
		e.gone.addr, e.gone.takeBack, e.gone.held = e.by, now, true
		r.hold(e)
	}
	r.expireLocked(now)
}

// expireLocked deletes expired absences, and the oldest ones above the limit. One that is held does
// not expire, nor do later ones.
func (r *registry) expireLocked(now time.Time) {
	for oldest := r.gone.Front(); oldest != nil; oldest = r.gone.Front() {
		name, _ := oldest.Value.(string)
		if gone := r.nodes[name].gone; r.gone.Len() <= r.maxGone && (gone.held || now.Sub(gone.since) < memory*r.takeBack) {
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

// takenOver is why old, and the streams in it, end: another instance has connected. Nothing in
// a hello distinguishes an agent that was restarted from a copy of its machine.
func takenOver(connected string, old *member) error {
	return fmt.Errorf("%w: the agent was started again, or there is another agent with this node's identity: one connected %s and takes over from this one, at %s",
		tunnel.Replaced, connected, old.where())
}

// refuseFenced refuses m: another instance is connected.
func (h *Hub) refuseFenced(m, there *member) error {
	if there.hello.Instance == m.hello.Instance {
		return h.refuseClone(m, "another server", "is connected")
	}
	state := "is connected"
	if l := there.session.Link(); !l.Parked.IsZero() {
		state = "has been out of reach since " + l.Parked.UTC().Format(time.RFC3339)
	}
	return h.refuseClone(m, there.where(), state)
}

// refuseClone refuses m and logs why: the instance at preferred, in that state, is the node.
func (h *Hub) refuseClone(m *member, preferred, state string) error {
	h.metrics.clones.Inc()
	h.tell(h.log, slog.LevelWarn, m.node, "two agents use one node's identity: give one of them an identity of its own",
		"node", m.node, "refused", m.addr.String(), "preferred", preferred, "state", state)
	return &refusal{tunnel.Replaced, min(h.config.TakeBack, fencedAgain), fmt.Sprintf(
		"another agent with this node's identity, at %s, took over from this one, at %s, and %s", preferred, m.addr, state)}
}

// refuseBarred refuses m because the last instance, which is not connected here, is connected
// to another server or may still run the node's pods.
func (h *Hub) refuseBarred(m *member, gone *absence) error {
	if gone.held {
		return h.refuseClone(m, gone.addr, "is connected to another server")
	}
	h.metrics.clones.Inc()
	back := gone.takeBack.UTC().Format(time.RFC3339)
	h.tell(h.log, slog.LevelWarn, m.node, "an agent whose node another one took over is not taken back yet: the other one may still run the pods",
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

// learn merges the other servers' observations of a node. If they end its sessions here, whose
// instance was superseded there, learn returns these and the observation that does.
func (r *registry) learn(node string, others []Observation) (lost []*member, by *Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakeLocked(node)
	e := r.nodes[node]
	if e == nil {
		return nil, nil
	}
	for i := range others {
		if e.learn(&others[i]) && by == nil {
			lost, by = e.members(), &others[i]
		}
	}
	e.elsewhere = r.elsewhere(e, others)
	if e.gone != nil {
		r.hold(e)
	}
	return lost, by
}

// learn merges o, and reports whether its instance takes over.
func (e *entry) learn(o *Observation) bool {
	here := e.newest()
	lost := here != nil && o.State != Detached && e.yields(here, o)
	for _, old := range o.Superseded {
		switch {
		case here != nil && old == here.hello.Instance: // the current instance superseded it
		case here == nil && (old == o.Instance || e.takenBack(old, o)): // it has been accepted since
		default:
			e.supersede(old, 0)
		}
	}
	if lost {
		e.supersede(here.hello.Instance, o.Instance)
		e.by = o.Addr
	}
	return lost
}

// yields reports whether the instance of o, which is connected to another server, is preferred
// to that of here: only the latter has been superseded, or the former connected later and
// neither has been or each has been by the other. Servers that cannot hear each other may
// prefer different instances.
func (e *entry) yields(here *member, o *Observation) bool {
	mine := slices.Contains(o.Superseded, here.hello.Instance) || slices.Contains(e.superseded, here.hello.Instance)
	other := slices.Contains(e.superseded, o.Instance) || slices.Contains(o.Superseded, o.Instance)
	if mine != other {
		return mine && here.hello.Instance != o.Instance
	}
	return here.hello.Instance != o.Instance && o.Connected.After(here.since)
}

// A standing is what other servers tell of a node's instances that are not superseded.
type standing struct {
	held  bool          // one has a session there
	after time.Duration // else: how long superseded instances are refused since the last of them ended
}

func (r *registry) elsewhere(e *entry, others []Observation) standing {
	now := standing{after: r.takeBack}
	for i := range others {
		o := &others[i]
		switch {
		case slices.Contains(e.superseded, o.Instance):
		case o.State != Detached:
			now.held = true
		case o.Cause == Left:
			now.after = min(now.after, takeBackLeft)
		}
	}
	return now
}

// hold has superseded instances refused while another server has a session of an instance that
// is not superseded. Once none has, the time until they are accepted begins anew.
func (r *registry) hold(e *entry) {
	if now := time.Now(); e.gone.held && !e.elsewhere.held {
		if until := now.Add(e.elsewhere.after); e.gone.takeBack.Before(until) {
			e.gone.takeBack = until
		}
		e.gone.since = now // it is remembered for as long as after the end of a session here
		r.gone.MoveToBack(e.place)
	}
	e.gone.held = e.elsewhere.held
}

// Learn merges the other servers' observations of a node, one of each that has a record of it:
// an instance that was superseded there is superseded here. Of two that were superseded by each
// other, and of two that were not, the latest to connect is preferred; the times are of this
// server's clock. While an instance that is not superseded has a session there, superseded ones
// are not taken back here. Dials that wait for the node retry.
func (h *Hub) Learn(node string, others ...Observation) {
	lost, by := h.registry.learn(node, others)
	if len(lost) == 0 {
		return
	}
	h.metrics.replaced.WithLabelValues("takeover").Inc()
	h.tell(h.log, slog.LevelInfo, node, "another instance of the node takes over, at another server", "node", node, "new", by.Addr, "old", lost[0].where())
	dismiss(lost, takenOver(fmt.Sprint("from ", by.Addr, " to another server"), lost[0]))
}
