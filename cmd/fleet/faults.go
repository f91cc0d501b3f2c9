// The language in which faults are ordered, and the plan that it makes.

package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Kind of fault says what happens to a node.
type Kind string

// The kinds of faults.
const (
	// Kill ends the agent without a goodbye and refuses it the network. Its
	// containers run on. When the fault is over the agent starts again.
	Kill Kind = "kill"
	// Silence has nothing pass between node and server: no connection ends, none
	// can be made.
	Silence Kind = "silence"
	// Mute does that to the requests that the node makes of the API server, alone:
	// the tunnel works, the heartbeats stop.
	Mute Kind = "mute"
	// Sick has the container runtime fail, so that the node says that it is not
	// ready.
	Sick Kind = "sick"
	// Restart ends the agent as an operator would, and starts it again.
	Restart Kind = "restart"
	// Cut resets all of the node's connections once. It lasts no time.
	Cut Kind = "cut"
	// Flap is Silence that comes and goes: half of each period it lasts.
	Flap Kind = "flap"
)

// kinds in the order in which people are told of them.
var kinds = []Kind{Kill, Silence, Mute, Sick, Restart, Cut, Flap}

// Bounds of an order, so that a plan stays finite and readable.
const (
	maxFaults = 64
	maxTime   = 30 * 24 * time.Hour
	minPeriod = 100 * time.Millisecond
)

// A Fault is one order: what happens to whom, when, for how long and how often.
type Fault struct {
	Kind Kind
	// Who is hit: exactly one of the following is set.
	Count   int     // so many nodes, drawn by the seed
	Percent float64 // of all nodes, rounded up, drawn by the seed
	Zone    string  // all nodes of the zone
	Node    string  // that one
	All     bool

	At    time.Duration // after the fleet was ready
	For   time.Duration // how long; zero means to the end
	Every time.Duration // how often it comes back; zero means never
}

// ParseFaults reads faults separated by commas:
//
//	KIND:WHO@AT[+FOR][~EVERY]
//
// KIND is kill, silence, mute, sick, restart, cut or flap. WHO is a number of
// nodes, a share of them such as 5%, a zone such as zone-1, the name of a node, or
// all. Times are Go's, such as 90s or 1m30s; AT counts from when all nodes were
// ready. Without FOR a fault lasts to the end, but for a flap, which lasts half of
// each EVERY, and a cut, which is over at once. With EVERY the same nodes are hit
// again and again. An empty text is no fault.
func ParseFaults(s string) ([]Fault, error) {
	var faults []Fault
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	for item := range strings.SplitSeq(s, ",") {
		f, err := parseFault(strings.TrimSpace(item))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", strings.TrimSpace(item), err)
		}
		faults = append(faults, f)
	}
	if len(faults) > maxFaults {
		return nil, fmt.Errorf("%d faults: want %d or fewer", len(faults), maxFaults)
	}
	return faults, nil
}

func parseFault(s string) (Fault, error) {
	var f Fault
	kind, rest, ok := strings.Cut(s, ":")
	if f.Kind = Kind(kind); !ok || !slices.Contains(kinds, f.Kind) {
		names := make([]string, 0, len(kinds))
		for _, k := range kinds {
			names = append(names, string(k))
		}
		return f, fmt.Errorf("want KIND:WHO@AT[+FOR][~EVERY], KIND one of %s", strings.Join(names, ", "))
	}
	who, when, ok := strings.Cut(rest, "@")
	if !ok {
		return f, errors.New("@AT is missing: say how long after the fleet is ready, such as @30s")
	}
	if err := f.parseWho(who); err != nil {
		return f, err
	}
	when, every, repeats := strings.Cut(when, "~")
	at, length, lasts := strings.Cut(when, "+")
	var err error
	if f.At, err = parseTime("AT", at); err != nil {
		return f, err
	}
	if lasts {
		if f.For, err = parseTime("FOR", length); err != nil {
			return f, err
		}
	}
	if repeats {
		if f.Every, err = parseTime("EVERY", every); err != nil {
			return f, err
		}
	}
	return f, f.settle(lasts, repeats)
}

// settle puts defaults in place and refuses times that contradict each other.
func (f *Fault) settle(lasts, repeats bool) error {
	switch {
	case repeats && f.Every < minPeriod:
		return fmt.Errorf("~%s: want %s or more", f.Every, minPeriod)
	case lasts && f.For == 0:
		return errors.New("+0s: a fault that lasts no time is none")
	case f.Kind == Flap && !repeats:
		return errors.New("a flap needs ~EVERY, such as ~15s")
	case f.Kind == Cut && lasts:
		return errors.New("a cut lasts no time: leave +FOR out, or say silence")
	case f.Kind == Flap && !lasts:
		f.For = f.Every / 2
	}
	instant := f.Kind == Cut || f.Kind == Restart
	switch {
	case repeats && f.For == 0 && !instant:
		return errors.New("~EVERY needs +FOR: a fault that does not end cannot come back")
	case repeats && f.For >= f.Every:
		return fmt.Errorf("+%s~%s: FOR must be less than EVERY", f.For, f.Every)
	}
	return nil
}

func (f *Fault) parseWho(s string) error {
	number, share := strings.CutSuffix(s, "%")
	switch n, err := strconv.Atoi(s); {
	case share:
		p, bad := strconv.ParseFloat(number, 64)
		if bad != nil || !(p > 0 && p <= 100) {
			return fmt.Errorf("WHO %q: want a share above 0%% and up to 100%%", s)
		}
		f.Percent = p
	case err == nil && n < 1:
		return fmt.Errorf("WHO %q: want at least one node", s)
	case err == nil:
		f.Count = n
	case s == "all":
		f.All = true
	case s == "":
		return errors.New("WHO is missing: a number, a share such as 5%, a zone, a node or all")
	case strings.HasPrefix(s, zonePrefix):
		f.Zone = s
	default:
		f.Node = s
	}
	return nil
}

func parseTime(what, s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > maxTime {
		return 0, fmt.Errorf("%s %q: want a time from 0s to %s, such as 30s", what, s, maxTime)
	}
	return d, nil
}

// String is what ParseFaults reads.
func (f Fault) String() string {
	s := string(f.Kind) + ":" + f.who() + "@" + f.At.String()
	if f.For > 0 {
		s += "+" + f.For.String()
	}
	if f.Every > 0 {
		s += "~" + f.Every.String()
	}
	return s
}

func (f Fault) who() string {
	switch {
	case f.All:
		return "all"
	case f.Percent > 0:
		return strconv.FormatFloat(f.Percent, 'g', -1, 64) + "%"
	case f.Count > 0:
		return strconv.Itoa(f.Count)
	}
	return cmp.Or(f.Zone, f.Node)
}

// A place is a node as faults see it.
type place struct{ name, zone string }

// victims are the indexes of the nodes that f hits, in ascending order. They
// depend on the seed, on f's position in the order and on nothing else, so that
// adding a fault does not change whom those before it hit.
func (f Fault) victims(nodes []place, seed uint64, position int) ([]int, error) {
	var hit []int
	for i, n := range nodes {
		if f.All || f.Zone != "" && n.zone == f.Zone || f.Node != "" && n.name == f.Node {
			hit = append(hit, i)
		}
	}
	count := f.Count
	if f.Percent > 0 {
		// One node in a thousand millionth is lost to rounding, not to arithmetic.
		count = int(float64(len(nodes))*f.Percent/100 + 1 - 1e-9)
	}
	if count > 0 {
		if count > len(nodes) {
			return nil, fmt.Errorf("%s: there are only %d nodes", f, len(nodes))
		}
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%d", position) // a hash never fails
		hit = rand.New(rand.NewPCG(seed, h.Sum64())).Perm(len(nodes))[:count]
		slices.Sort(hit)
	}
	if len(hit) == 0 {
		return nil, fmt.Errorf("%s: there is no such node or zone", f)
	}
	return hit, nil
}

// A Step is one turn of a Plan: a fault begins on some nodes, or is over.
type Step struct {
	At    time.Duration // after the fleet was ready
	Fault Fault
	Begin bool  // or it is over
	Nodes []int // who is hit, by index

	order int // of the fault
	round int // how often it has come back
}

// A Plan is the steps that faults make on the nodes of a fleet.
type Plan struct {
	queue []Step // one for each fault that goes on
}

// newPlan draws who is hit. The same seed hits the same nodes at the same times.
func newPlan(faults []Fault, nodes []place, seed uint64) (*Plan, error) {
	p := &Plan{}
	for i, f := range faults {
		hit, err := f.victims(nodes, seed, i)
		if err != nil {
			return nil, err
		}
		p.queue = append(p.queue, Step{At: f.At, Fault: f, Begin: true, Nodes: hit, order: i})
	}
	return p, nil
}

// Next returns the next step, and false when there is none.
func (p *Plan) Next() (Step, bool) {
	if len(p.queue) == 0 {
		return Step{}, false
	}
	at := 0
	for i, s := range p.queue {
		if s.before(p.queue[at]) {
			at = i
		}
	}
	s := p.queue[at]
	if next, ok := s.next(); ok {
		p.queue[at] = next
	} else {
		p.queue = slices.Delete(p.queue, at, at+1)
	}
	return s, true
}

// before orders steps of the same time: what is over is over before the next
// begins.
func (s Step) before(t Step) bool {
	switch {
	case s.At != t.At:
		return s.At < t.At
	case s.Begin != t.Begin:
		return !s.Begin
	}
	return s.order < t.order
}

// next is the step of the same fault that follows s.
func (s Step) next() (Step, bool) {
	f := s.Fault
	if s.Begin && f.For > 0 {
		s.Begin, s.At = false, s.At+f.For
		return s, true
	}
	if f.Every == 0 {
		return s, false
	}
	s.round++
	s.Begin, s.At = true, f.At+time.Duration(s.round)*f.Every
	return s, true
}
