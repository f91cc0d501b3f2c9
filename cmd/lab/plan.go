// What a Script means for the nodes of a lab, and its execution.

package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// An Event is one thing that happens to one node.
type Event struct {
	At   time.Duration // from the beginning of Run
	Node string
	What string // for people: "cut both", "rebind"
	Line int    // of the script

	fault string // kind and node: what an end ends
	do    func(context.Context, *Node) error
	end   func(context.Context, *Node) error // of a fault that this begins; nil if it has no end
}

func (e Event) String() string { return fmt.Sprintf("%v %s %s", e.At, e.Node, e.What) }

// Plan says what will happen to nodes of these names, in order. The same script and
// names give the same plan. It refuses a script that names another node.
func (s Script) Plan(nodes []string) ([]Event, error) {
	var plan []Event
	for i, st := range s.statements {
		named := st.series.nodes
		if st.verb != "cuts" {
			named = []string{st.node}
		}
		for _, name := range named {
			if !slices.Contains(nodes, name) {
				return nil, fmt.Errorf("script: line %d: there is no node %q: there are %s", st.line, name, strings.Join(nodes, ", "))
			}
		}
		if st.verb != "cuts" {
			plan = append(plan, st.events()...)
			continue
		}
		if named == nil {
			named = nodes
		}
		if len(named) == 0 {
			return nil, fmt.Errorf("script: line %d: there are no nodes", st.line)
		}
		// A series draws from chances of its own: a line more does not change it.
		plan = append(plan, st.cuts(named, rand.New(rand.NewPCG(s.Seed, uint64(i))))...)
	}
	slices.SortStableFunc(plan, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return plan, nil
}

// events are the beginning of a fault and, if it has one, its end.
func (st statement) events() []Event {
	begin := Event{At: st.at, Node: st.node, What: st.verb, Line: st.line, fault: st.verb + " " + st.node}
	var end func(context.Context, *Node) error
	switch st.verb {
	case "cut":
		begin.What = "cut " + st.way.String()
		begin.do = func(ctx context.Context, n *Node) error { return n.CutOneWay(ctx, st.way) }
		end = func(ctx context.Context, n *Node) error { return n.Heal(ctx) }
	case "heal":
		begin.do = func(ctx context.Context, n *Node) error { return n.Heal(ctx) }
	case "rebind":
		begin.do = func(ctx context.Context, n *Node) error { return n.Rebind(ctx) }
	case "move":
		begin.do = func(ctx context.Context, n *Node) error { return n.Move(ctx) }
	case "clear":
		begin.do = func(ctx context.Context, n *Node) error { return n.Clear(ctx) }
	case "reset":
		begin.do = func(ctx context.Context, n *Node) error { return n.setReset(ctx, true) }
		end = func(ctx context.Context, n *Node) error { return n.setReset(ctx, false) }
	case "loss":
		begin.do = func(ctx context.Context, n *Node) error { return n.Loss(ctx, st.share) }
		end = func(ctx context.Context, n *Node) error { return n.Loss(ctx, 0) }
	case "rate":
		begin.do = func(ctx context.Context, n *Node) error { return n.Rate(ctx, st.rate) }
		end = func(ctx context.Context, n *Node) error { return n.Rate(ctx, 0) }
	case "shape":
		begin.do = func(ctx context.Context, n *Node) error { return n.Shape(ctx, st.shape, st.shape) }
		end = func(ctx context.Context, n *Node) error { return n.Shape(ctx, noShape, noShape) }
	}
	if st.length == 0 {
		return []Event{begin}
	}
	begin.end = end
	return []Event{begin, {
		At: st.at + st.length, Node: st.node, What: "end of " + begin.What, Line: st.line, fault: begin.fault, do: end,
	}}
}

// cuts draws a series.
func (st statement) cuts(nodes []string, chance *rand.Rand) []Event {
	var plan []Event
	at := st.at
	for range st.series.count {
		at += st.series.pause.draw(chance)
		// Drawn for every kind, so that the times do not depend on the kinds.
		cut := statement{line: st.line, at: at, way: Both, node: nodes[chance.IntN(len(nodes))]}
		kind, length := st.series.kinds[chance.IntN(len(st.series.kinds))], st.series.length.draw(chance)
		switch kind {
		case "rst":
			cut.verb, cut.length = "reset", length
		case "blackhole":
			cut.verb, cut.length = "cut", length
		default:
			cut.verb = kind
		}
		plan = append(plan, cut.events()...)
		at += cut.length
	}
	return plan
}

func (s span) draw(chance *rand.Rand) time.Duration {
	return s.from + time.Duration(chance.Int64N(int64(s.to-s.from)+1))
}

// Run does what a script says to the nodes of a lab and returns after the last event.
// The links that it shapes draw from the script's seed. An event that is due while
// the one before is still being put in place comes late: each takes some tens of
// milliseconds.
//
// If ctx ends or an event fails, it ends the faults that have an end, and says why.
func Run(ctx context.Context, l *Lab, s Script) error {
	return s.Run(ctx, l, func(Event) {})
}

// Run is the function Run that tells of each event before it does it.
func (s Script) Run(ctx context.Context, l *Lab, tell func(Event)) error {
	var names []string
	byName := map[string]*Node{}
	for _, n := range l.nodes {
		names = append(names, n.Name)
		byName[n.Name] = n
	}
	plan, err := s.Plan(names)
	if err != nil {
		return err
	}
	l.Seed = s.Seed
	begin := time.Now()
	open := map[string]Event{} // faults that have begun and have an end to come
	for _, e := range plan {
		if err := until(ctx, begin.Add(e.At)); err != nil {
			return errors.Join(fmt.Errorf("script: before line %d: %w", e.Line, err), endAll(ctx, open, byName))
		}
		if e.end != nil {
			open[e.fault] = e // even if it fails: it may have been done in part
		}
		tell(e)
		if err := e.do(ctx, byName[e.Node]); err != nil {
			return errors.Join(fmt.Errorf("script: line %d: at %v: %w", e.Line, e.At, err), endAll(ctx, open, byName))
		}
		if e.end == nil {
			delete(open, e.fault)
		}
	}
	return nil
}

// endAll ends faults though ctx may be done.
func endAll(ctx context.Context, open map[string]Event, byName map[string]*Node) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for _, fault := range slices.Sorted(maps.Keys(open)) {
		e := open[fault]
		errs = append(errs, e.end(ctx, byName[e.Node]))
	}
	return errors.Join(errs...)
}

// until waits for a time, and returns ctx's error if that ends first.
func until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return context.Cause(ctx) // both may be so: the end wins
	}
}
