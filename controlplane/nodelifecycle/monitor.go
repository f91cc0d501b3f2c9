package nodelifecycle

// The monitor: one pass after another over all nodes.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	nodetopology "k8s.io/component-helpers/node/topology"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// excludeDisruption labels nodes, whatever its value, that do not count when a
// zone is judged.
const excludeDisruption = "node.kubernetes.io/exclude-disruption"

// records are what is known of all nodes. The monitor alone changes them.
type records struct {
	mu     sync.RWMutex
	byName map[string]*nodeRecord
}

// of returns the record of a node, or nil.
func (r *records) of(node string) *nodeRecord {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byName[node]
}

// An observation is what one pass finds out about one node.
type observation struct {
	node  *corev1.Node // the latest that is known
	rec   *nodeRecord
	first bool // this run has not dealt with the node before

	// The status of the Ready condition before and after what this pass did to
	// it; empty: there is none.
	observed, current corev1.ConditionStatus

	gone   bool  // the node was deleted meanwhile
	err    error // why nothing was done about the node in this pass
	taint  bool  // the node is to wait for a NoExecute taint
	status bool  // the node's Ready condition was changed
	mark   bool  // the node's pods are to be marked not ready
}

// monitor makes passes until ctx is done. They begin MonitorPeriod apart; one that
// takes about that long or longer still leaves the server some rest.
func (r *run) monitor(ctx context.Context) error {
	r.answered = time.Now()
	r.memory.load(ctx)
	for {
		began := time.Now()
		if err := r.pass(ctx); err != nil {
			return fmt.Errorf("look at all nodes: %w", err)
		}
		ended := time.Now()
		rest := max(r.cfg.MonitorPeriod-ended.Sub(began), r.cfg.MonitorPeriod/restPart)
		if !pause(ctx, rest) {
			return nil
		}
		if late := time.Since(ended) - rest; r.cfg.stoodStill(late) {
			r.log.Warn("this process stood still; that time does not count as silence of nodes", "for", late)
			r.hold(late, time.Now())
		}
	}
}

// pass looks at every node once. What is to become of nodes that are not ready
// is put off until all zones have been judged by what this pass found, so that
// nobody is evicted in the moment before a disruption is seen. An error is a
// fault of the program.
func (r *run) pass(ctx context.Context) error {
	began := time.Now()
	if r.reach.down.Load() {
		if !r.reach.back(ctx) {
			return nil
		}
		if t := r.arrivals.any(); t.After(r.answered) {
			r.answered = t
		}
		r.hold(time.Since(r.answered), time.Now())
	}
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	r.enrol(nodes)
	if err := r.each(ctx, r.examine); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	r.markAll()
	if !r.reach.down.Load() {
		if err := r.judge(ctx); err != nil {
			return err
		}
		r.remember(ctx)
	}
	r.complain()
	r.metrics.allNodes.Observe(time.Since(began).Seconds())
	return nil
}

// enrol makes an observation of each node, and takes leave of those that are gone.
func (r *run) enrol(nodes []*corev1.Node) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	r.observations = slices.Grow(r.observations[:0], len(nodes))
	for _, n := range nodes {
		rec := r.records.byName[n.Name]
		if rec != nil && rec.node.UID != n.UID { // deleted and made again since
			r.dismissLocked(rec)
			rec = nil
		}
		switch {
		case rec == nil:
			rec = &nodeRecord{zone: nodetopology.GetZoneKey(n)}
			r.records.byName[n.Name] = rec
			r.tellAdded(n)
			r.queues.of(rec.zone, r.cfg.EvictionRate)
			r.metrics.evictions.WithLabelValues(rec.zone)
		case rec.node != n:
			if zone := nodetopology.GetZoneKey(n); zone != rec.zone {
				r.queues.remove(rec.zone, n.Name)
				rec.zone = zone
				r.metrics.evictions.WithLabelValues(zone)
			}
		}
		rec.node = n
		r.observations = append(r.observations, observation{node: n, rec: rec, first: !rec.settled})
	}
	if len(r.records.byName) == len(nodes) {
		return
	}
	there := make(map[*nodeRecord]bool, len(nodes))
	for i := range r.observations {
		there[r.observations[i].rec] = true
	}
	for _, rec := range r.records.byName {
		if !there[rec] {
			r.dismissLocked(rec)
		}
	}
}

func (r *run) dismissLocked(rec *nodeRecord) {
	r.tellRemoved(rec.node)
	r.queues.remove(rec.zone, rec.node.Name)
	r.count(rec, "", "", time.Time{})
	delete(r.records.byName, rec.node.Name)
}

// each calls f for every observation, several at once.
func (r *run) each(ctx context.Context, f func(ctx context.Context, s *observation)) error {
	var next atomic.Int64
	work := func(ctx context.Context) error {
		var s *observation
		look := func() error {
			f(ctx, s)
			return nil
		}
		for ctx.Err() == nil {
			i := next.Add(1) - 1
			if i >= int64(len(r.observations)) {
				break
			}
			s = &r.observations[i]
			if err := loop.Protect(look); err != nil {
				loop.Broken(r.log, "node "+s.node.Name, err)
				s.err = err
			}
		}
		return nil
	}
	return loop.Together(ctx, slices.Repeat([]func(context.Context) error{work}, r.cfg.Workers)...)
}

// markAll has the pods of nodes marked that this pass has found not ready. It comes
// when all nodes have been seen to: a node has many pods, and when many nodes fall
// silent together none is to wait for the pods of the others.
func (r *run) markAll() {
	for i := range r.observations {
		if s := &r.observations[i]; s.mark {
			r.marking.Add(podKey{node: s.node.Name})
		}
	}
}

// hold takes a time in which nobody could be heard out of the silence of all nodes.
// What they had been silent for before that counts.
func (r *run) hold(gap time.Duration, now time.Time) {
	for _, rec := range r.records.byName {
		if rec.heard = rec.heard.Add(gap); rec.heard.After(now) {
			rec.heard = now
		}
	}
}

// complain logs that nodes could not be dealt with, and that they can again;
// not that nothing has changed.
func (r *run) complain() {
	failed, first := 0, error(nil)
	for i := range r.observations {
		if s := &r.observations[i]; s.err != nil {
			failed, first = failed+1, cmp.Or(first, s.err)
		}
	}
	switch {
	case r.reach.down.Load():
		// That has been said.
	case failed > 0 && !r.failing:
		r.log.Warn("nodes could not be updated; nothing is evicted from them", "nodes", failed, "error", first)
	case failed == 0 && r.failing:
		r.log.Info("all nodes can be updated again")
	}
	r.failing = failed > 0
}

// tallies counts the nodes of each zone as this pass leaves them.
func (r *run) tallies() map[string]tally {
	counts := map[string]tally{}
	for i := range r.observations {
		s := &r.observations[i]
		if s.gone {
			continue
		}
		t := counts[s.rec.zone]
		_, excluded := s.node.Labels[excludeDisruption]
		switch {
		case excluded:
		case s.current == corev1.ConditionTrue:
			t.ready++
		default:
			t.notReady++
		}
		counts[s.rec.zone] = t
	}
	return counts
}

// judge judges the zones by what the pass found and sets their rates, and then
// queues the nodes that are to be tainted.
func (r *run) judge(ctx context.Context) error {
	counts := r.tallies()
	before, now := r.outlook, time.Now()
	after, change := before.next(counts, r.cfg.Policy)
	r.outlook = after
	for zone, rate := range after.rates {
		r.queues.of(zone, r.cfg.EvictionRate).set(rate, now)
		if was, is := before.states[zone], after.states[zone]; was != is {
			t := counts[zone]
			r.log.Info("a zone has changed", "zone", zone, "from", was, "to", is, "rate", rate, "ready", t.ready, "notReady", t.notReady)
		}
	}
	switch change {
	case stop:
		r.stopped = now
		r.log.Warn("no node of any zone is ready; evictions stop, and of nodes without a tunnel those that have begun are called off")
	case resume:
		r.log.Info("a node is ready again; evictions go on")
		r.hold(now.Sub(r.stopped), now)
	}
	if after.stopped {
		if err := r.each(ctx, r.cancelEviction); err != nil {
			return err
		}
	}
	r.enqueue(now)
	for _, zone := range r.queues.drop(counts) {
		r.metrics.gone(zone)
	}
	for zone, t := range counts {
		r.metrics.counted(zone, t, after.rates[zone], r.queues.of(zone, r.cfg.EvictionRate).size())
	}
	return nil
}

// cancelEviction takes a node's NoExecute taints back, unless its silence is judged by more
// than that of the others.
func (r *run) cancelEviction(ctx context.Context, s *observation) {
	if !s.gone && !r.cfg.Judged(s.node) {
		r.untaint(ctx, s)
	}
}

// enqueue puts the nodes that are to be tainted into the queues of their zones, the longest quiet first.
func (r *run) enqueue(now time.Time) {
	var waiting []*observation
	for i := range r.observations {
		if s := &r.observations[i]; s.taint {
			waiting = append(waiting, s)
		}
	}
	slices.SortFunc(waiting, func(a, b *observation) int {
		return cmp.Or(a.rec.heard.Compare(b.rec.heard), cmp.Compare(a.node.Name, b.node.Name))
	})
	for _, s := range waiting {
		q := r.queues.of(s.rec.zone, r.cfg.EvictionRate)
		q.forget(s.node.Name)
		q.add(s.node.Name, now)
	}
}
