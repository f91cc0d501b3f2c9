package nodelifecycle

// What state a zone is in, and how fast its nodes may be evicted from. All of it
// is pure.

// A zoneState says how much of a zone is down.
type zoneState int

const (
	zoneInitial zoneState = iota // none of its nodes counts
	zoneNormal
	zonePartial // too many nodes are not ready
	zoneFull    // no node is ready
)

func (s zoneState) String() string {
	return [...]string{"Initial", "Normal", "PartialDisruption", "FullDisruption"}[s]
}

// A tally counts the nodes of a zone that are not excluded from disruption.
type tally struct{ ready, notReady int }

func (t tally) size() int { return t.ready + t.notReady }

// health is the share of ready nodes in percent.
func (t tally) health() float64 {
	if t.size() == 0 {
		return 100
	}
	return float64(100*t.ready) / float64(t.size())
}

// state judges a zone. The division is done in single precision because the
// threshold is given so: 11 of 20 is 0.55 to the last bit.
func (t tally) state(threshold float32) zoneState {
	switch {
	case t.size() == 0:
		return zoneInitial
	case t.ready == 0:
		return zoneFull
	case t.notReady > 2 && float32(t.notReady)/float32(t.size()) >= threshold:
		return zonePartial
	default:
		return zoneNormal
	}
}

// rate is how many nodes a second of a zone in state s may be evicted from.
func (p Policy) rate(s zoneState, size int) float32 {
	switch {
	case s != zonePartial:
		return p.EvictionRate
	case size > p.LargeClusterThreshold:
		return p.SecondaryEvictionRate
	default:
		return 0
	}
}

// A change is what a look at all zones means for the cluster as a whole.
type change int

const (
	nothing change = iota // evictions go on, or stay stopped, as before
	stop                  // no node anywhere is ready any more
	resume                // some node is ready again
)

// An outlook is the state of all zones.
type outlook struct {
	stopped bool // no node of any zone is ready: nothing is evicted
	states  map[string]zoneState
	rates   map[string]float32 // nodes per second
}

// next returns the outlook after a look that counted what counts says. Zones
// that it does not name have no nodes any more; a zone none of whose nodes counts
// has no say in whether the cluster is down.
func (o outlook) next(counts map[string]tally, p Policy) (outlook, change) {
	n := outlook{states: make(map[string]zoneState, len(counts)), rates: make(map[string]float32, len(counts))}
	full, other := 0, 0
	for zone, t := range counts {
		s := t.state(p.UnhealthyZoneThreshold)
		n.states[zone] = s
		n.rates[zone] = p.rate(s, t.size())
		switch s {
		case zoneFull:
			full++
		case zoneNormal, zonePartial:
			other++
		}
	}
	n.stopped = full > 0 && other == 0
	if n.stopped {
		for zone := range n.rates {
			n.rates[zone] = 0
		}
	}
	switch {
	case n.stopped && !o.stopped:
		return n, stop
	case !n.stopped && o.stopped:
		return n, resume
	}
	return n, nothing
}
