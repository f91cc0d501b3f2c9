package nodelifecycle

// Tests of the states of zones, by table and against a model.

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

func TestState(t *testing.T) {
	for _, tc := range []struct {
		ready, notReady int
		threshold       float32
		want            zoneState
	}{
		{0, 0, 0.55, zoneInitial},
		{1, 0, 0.55, zoneNormal},
		{0, 1, 0.55, zoneFull},
		{0, 20, 0.55, zoneFull},
		{1, 2, 0.55, zoneNormal}, // two are not enough
		{1, 3, 0.55, zonePartial},
		{9, 11, 0.55, zonePartial}, // exactly the threshold
		{10, 10, 0.55, zoneNormal},
		{45, 55, 0.55, zonePartial},
		{46, 54, 0.55, zoneNormal},
		{450, 550, 0.55, zonePartial},
		{4501, 5499, 0.55, zoneNormal},
		{97, 3, 0, zonePartial},
		{98, 2, 0, zoneNormal},
		{1, 99, 1, zoneNormal},
		{0, 99, 1, zoneFull},
		{2, 4, 2.0 / 3, zonePartial},
		{3, 7, 0.7, zonePartial},
		{9, 3, 0.25, zonePartial},
	} {
		if got := (tally{tc.ready, tc.notReady}).state(tc.threshold); got != tc.want {
			t.Errorf("%d ready, %d not, threshold %v: %v, want %v", tc.ready, tc.notReady, tc.threshold, got, tc.want)
		}
	}
}

// TestOutlook follows zones through disruptions.
func TestOutlook(t *testing.T) {
	p := DefaultPolicy()
	const normal, slow = DefaultEvictionRate, DefaultSecondaryEvictionRate
	type counts = map[string]tally
	type rates = map[string]float32
	var o outlook
	for i, step := range []struct {
		name   string
		counts counts
		change change
		rates  rates
	}{
		{"no nodes", counts{}, nothing, rates{}},
		{"a first node that is not ready", counts{"a": {0, 1}}, stop, rates{"a": 0}},
		{"it is", counts{"a": {1, 0}}, resume, rates{"a": normal}},
		{"a second zone", counts{"a": {10, 0}, "b": {60, 0}}, nothing, rates{"a": normal, "b": normal}},
		{"a small one half down", counts{"a": {4, 6}, "b": {60, 0}}, nothing, rates{"a": 0, "b": normal}},
		{"a large one, too", counts{"a": {4, 6}, "b": {20, 40}}, nothing, rates{"a": 0, "b": slow}},
		{"a large one becomes small", counts{"a": {4, 6}, "b": {20, 30}}, nothing, rates{"a": 0, "b": 0}},
		{"one all down", counts{"a": {0, 10}, "b": {20, 40}}, nothing, rates{"a": normal, "b": slow}},
		{"all down", counts{"a": {0, 10}, "b": {0, 60}}, stop, rates{"a": 0, "b": 0}},
		{"still", counts{"a": {0, 10}, "b": {0, 60}}, nothing, rates{"a": 0, "b": 0}},
		{"a new zone, down", counts{"a": {0, 10}, "b": {0, 60}, "c": {0, 1}}, nothing, rates{"a": 0, "b": 0, "c": 0}},
		{"it is up", counts{"a": {0, 10}, "b": {0, 60}, "c": {1, 0}}, resume, rates{"a": normal, "b": normal, "c": normal}},
		{"the only one that was up is gone", counts{"a": {0, 10}, "b": {0, 60}}, stop, rates{"a": 0, "b": 0}},
		{"what does not count has no say", counts{"a": {0, 10}, "b": {0, 60}, "x": {0, 0}}, nothing, rates{"a": 0, "b": 0, "x": 0}},
		{"nothing that counts is left", counts{"x": {0, 0}}, resume, rates{"x": normal}},
		{"nothing at all", counts{}, nothing, rates{}},
	} {
		var c change
		o, c = o.next(step.counts, p)
		if c != step.change || !maps.Equal(o.rates, step.rates) {
			t.Errorf("%d %s: change %d, rates %v; want %d, %v", i, step.name, c, o.rates, step.change, step.rates)
		}
	}
}

// model is the documented rule, told zone by zone as Kubernetes does: it keeps
// the state of each zone and works out from those what the cluster was.
type model struct {
	states map[string]zoneState
	rates  map[string]float32
}

func (m *model) pass(counts map[string]tally, p Policy) change {
	for zone := range m.states {
		if _, there := counts[zone]; !there {
			delete(m.states, zone)
			delete(m.rates, zone)
		}
	}
	for zone := range counts {
		if _, known := m.states[zone]; !known {
			m.states[zone], m.rates[zone] = zoneInitial, p.EvictionRate
		}
	}
	now, allAre, allWere := map[string]zoneState{}, true, true
	for zone, t := range counts {
		switch {
		case t.ready == 0:
			now[zone] = zoneFull
		case t.notReady > 2 && float32(t.notReady)/float32(t.notReady+t.ready) >= p.UnhealthyZoneThreshold:
			now[zone] = zonePartial
		default:
			now[zone] = zoneNormal
		}
		allAre = allAre && now[zone] == zoneFull
		allWere = allWere && m.states[zone] == zoneFull
	}
	set := func(zone string) {
		m.states[zone] = now[zone]
		switch {
		case now[zone] != zonePartial:
			m.rates[zone] = p.EvictionRate
		case counts[zone].ready+counts[zone].notReady > p.LargeClusterThreshold:
			m.rates[zone] = p.SecondaryEvictionRate
		default:
			m.rates[zone] = 0
		}
	}
	switch {
	case allAre && allWere:
		return nothing
	case allAre:
		for zone := range counts {
			m.states[zone], m.rates[zone] = zoneFull, 0
		}
		return stop
	case allWere:
		for zone := range counts {
			set(zone)
		}
		return resume
	}
	for zone := range counts {
		if m.states[zone] != now[zone] {
			set(zone)
		}
	}
	return nothing
}

// FuzzZones lets zones of fixed size go up and down and compares with the model,
// and checks what must hold in any case. Sizes do not change on the way, and
// zones do not come or go: there we mean to differ.
func FuzzZones(f *testing.F) {
	f.Add([]byte{3, 10, 60, 51, 0, 0, 0, 10, 60, 51, 6, 40, 29, 10, 60, 51, 0, 1, 2})
	f.Add([]byte{1, 20, 20, 11, 10, 20, 0})
	f.Add([]byte{2, 4, 4, 4, 4, 4, 3, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 4 {
			return
		}
		n := 1 + int(data[0])%3
		sizes, steps := data[1:1+n], data[1+n:]
		p := DefaultPolicy()
		m := model{states: map[string]zoneState{}, rates: map[string]float32{}}
		var o outlook
		for pass := 0; len(steps) >= n; pass++ {
			counts, ready := map[string]tally{}, 0
			for i := range n {
				size := 1 + int(sizes[i])%120
				down := int(steps[i]) % (size + 1)
				counts[fmt.Sprint("zone-", i)] = tally{size - down, down}
				ready += size - down
			}
			steps = steps[n:]
			var got change
			o, got = o.next(counts, p)
			if want := m.pass(counts, p); got != want || !maps.Equal(o.rates, m.rates) || !maps.Equal(o.states, m.states) {
				t.Fatalf("pass %d of %v: change %d, rates %v, states %v; the model says %d, %v, %v", pass, counts, got, o.rates, o.states, want, m.rates, m.states)
			}
			if o.stopped != (ready == 0) {
				t.Fatalf("stopped: %v with %d nodes ready", o.stopped, ready)
			}
			if o.stopped && slices.Max(slices.Collect(maps.Values(o.rates))) > 0 {
				t.Fatalf("rates %v while all is down", o.rates)
			}
		}
	})
}
