package fleet

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseFaults(t *testing.T) {
	for spec, want := range map[string][]Fault{
		"":                         nil,
		" ":                        nil,
		"kill:10%@30s":             {{Kind: Kill, Percent: 10, At: 30 * time.Second}},
		"silence:zone-1@60s+120s":  {{Kind: Silence, Zone: "zone-1", At: time.Minute, For: 2 * time.Minute}},
		"flap:5%@10s~15s":          {{Kind: Flap, Percent: 5, At: 10 * time.Second, For: 7500 * time.Millisecond, Every: 15 * time.Second}},
		"flap:1@0s+1s~15s":         {{Kind: Flap, Count: 1, For: time.Second, Every: 15 * time.Second}},
		"cut:all@1s~2s, mute:3@5s": {{Kind: Cut, All: true, At: time.Second, Every: 2 * time.Second}, {Kind: Mute, Count: 3, At: 5 * time.Second}},
		"restart:sim-7@1m+5s~1h":   {{Kind: Restart, Node: "sim-7", At: time.Minute, For: 5 * time.Second, Every: time.Hour}},
		"sick:0.5%@1.5s+1s":        {{Kind: Sick, Percent: 0.5, At: 1500 * time.Millisecond, For: time.Second}},
	} {
		got, err := ParseFaults(spec)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", spec, got, err, want)
		}
		for _, f := range got {
			if again, err := ParseFaults(f.String()); err != nil || !reflect.DeepEqual(again, []Fault{f}) {
				t.Errorf("%q is written as %q, which is read as %+v, %v", spec, f, again, err)
			}
		}
	}
}

// What is wrong is said in one line that names it.
func TestBadFaults(t *testing.T) {
	for spec, want := range map[string]string{
		"explode:1@1s":        "KIND one of kill, silence",
		"kill":                "want KIND:WHO@AT",
		"kill:1":              "@AT is missing",
		"kill:@1s":            "WHO is missing",
		"kill:0@1s":           "at least one",
		"kill:-3@1s":          "at least one",
		"kill:0%@1s":          "above 0%",
		"kill:101%@1s":        "up to 100%",
		"kill:NaN%@1s":        "above 0%",
		"kill:x%@1s":          "above 0%",
		"kill:1@":             `AT ""`,
		"kill:1@soon":         `AT "soon"`,
		"kill:1@-1s":          `AT "-1s"`,
		"kill:1@1000h":        `AT "1000h"`,
		"kill:1@1s+":          `FOR ""`,
		"kill:1@1s+0s":        "none",
		"kill:1@1s~5s":        "needs +FOR",
		"kill:1@1s+5s~5s":     "less than EVERY",
		"kill:1@1s+5s~x":      `EVERY "x"`,
		"flap:1@1s":           "needs ~EVERY",
		"flap:1@1s~1ms":       "100ms or more",
		"cut:1@1s+1s":         "lasts no time",
		"kill:1@1s,":          `"": want KIND`,
		"kill:1@1s,,cut:1@0s": `"": want KIND`,
		strings.Repeat("kill:1@1s,", 64) + "kill:1@1s": "65 faults",
	} {
		got, err := ParseFaults(spec)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, %v; want %q", spec, got, err, want)
		}
	}
}

func places(count, zones int) []place {
	list := make([]place, count)
	for i := range list {
		list[i] = place{name: fmt.Sprintf("sim-%d", i+1), zone: zoneOf(i, zones)}
	}
	return list
}

// A plan is drawn by its seed, and by nothing that comes after a fault.
func TestPlanIsDrawnBySeed(t *testing.T) {
	draw := func(spec string, seed uint64) [][]int {
		t.Helper()
		faults, err := ParseFaults(spec)
		if err != nil {
			t.Fatal(err)
		}
		p, err := newPlan(faults, places(1000, 4), seed)
		if err != nil {
			t.Fatal(err)
		}
		var hit [][]int
		for s, ok := p.Next(); ok; s, ok = p.Next() {
			hit = append(hit, s.Nodes)
		}
		return hit
	}
	one := draw("kill:10%@1s", 1)
	if len(one) != 1 || len(one[0]) != 100 || !slices.IsSorted(one[0]) || len(slices.Compact(slices.Clone(one[0]))) != 100 {
		t.Fatalf("10%% of 1000: %v", one)
	}
	if again := draw("kill:10%@1s,kill:10%@2s", 1); !reflect.DeepEqual(again[0], one[0]) {
		t.Error("a fault that was added changes whom the first one hits")
	} else if reflect.DeepEqual(again[0], again[1]) {
		t.Error("two faults hit the same nodes")
	}
	if other := draw("kill:10%@1s", 2); reflect.DeepEqual(other, one) {
		t.Error("another seed hits the same nodes")
	}
	zone := draw("kill:zone-2@1s", 1)[0]
	if len(zone) != 250 || zone[0] != 1 || zone[1] != 5 {
		t.Errorf("zone-2: %v", zone)
	}
	for spec, want := range map[string]int{"kill:0.01%@1s": 1, "kill:33.3%@1s": 333, "kill:33.31%@1s": 334, "kill:all@1s": 1000, "kill:sim-5@1s": 1, "kill:100%@1s": 1000} {
		if got := draw(spec, 1)[0]; len(got) != want {
			t.Errorf("%s hits %d, want %d", spec, len(got), want)
		}
	}
	for _, spec := range []string{"kill:1001@1s", "kill:zone-5@1s", "kill:sim-1001@1s"} {
		faults, err := ParseFaults(spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newPlan(faults, places(1000, 4), 1); err == nil || !strings.Contains(err.Error(), spec) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// Steps come in the order of time; what ends comes before what begins.
func TestPlanOrder(t *testing.T) {
	faults, err := ParseFaults("kill:sim-1@4s,cut:sim-2@1s~3s,silence:sim-3@2s+2s,flap:sim-4@0s~4s")
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPlan(faults, places(4, 1), 1)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for range 12 {
		s, ok := p.Next()
		if !ok {
			t.Fatal("a plan with faults that come back ended")
		}
		word := "ends"
		if s.Begin {
			word = "begins"
		}
		got = append(got, fmt.Sprintf("%s %s %s", s.At, s.Fault.Kind, word))
	}
	want := []string{
		"0s flap begins", "1s cut begins", "2s flap ends", "2s silence begins", "4s silence ends", "4s kill begins",
		"4s cut begins", "4s flap begins", "6s flap ends", "7s cut begins", "8s flap begins", "10s flap ends",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func FuzzParseFaults(f *testing.F) {
	for _, s := range []string{"kill:10%@30s,silence:zone-1@60s+120s,flap:5%@10s~15s", "cut:all@0s~1s", "restart:sim-1@1s+1s~2s", "sick:1@1h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		faults, err := ParseFaults(s)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		for _, one := range faults {
			again, err := ParseFaults(one.String())
			if err != nil || len(again) != 1 || again[0] != one {
				t.Errorf("%+v is written as %q, which is read as %+v, %v", one, one, again, err)
			}
		}
		// Whatever is accepted can be planned: it ends or goes on in time.
		p, err := newPlan(faults, places(10, 2), 1)
		if err != nil {
			return
		}
		last := time.Duration(-1)
		for range 50 {
			s, ok := p.Next()
			if !ok {
				break
			}
			if s.At < last || len(s.Nodes) == 0 {
				t.Fatalf("%+v after %s", s, last)
			}
			last = s.At
		}
	})
}
