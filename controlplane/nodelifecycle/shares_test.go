package nodelifecycle

// Tests of zones that are down in part, or as a whole.

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestShares: how many of a zone have to be down for it to be slowed or stopped.
// Nodes are quiet from the first pass on, so they are Unknown at 40 s and, if
// there is a token, the first of them is tainted at 45.05 s.
func TestShares(t *testing.T) {
	const first = 45*second + tick/2
	for _, tc := range []struct {
		nodes, down int
		policy      func(p *Policy)
		apart       time.Duration // 0: nothing is tainted
		state       zoneState
	}{
		{20, 10, nil, 10 * second, zoneNormal},
		{20, 11, nil, 0, zonePartial},
		{20, 12, nil, 0, zonePartial},
		{20, 20, nil, 0, zoneFull},
		{50, 27, nil, 10 * second, zoneNormal},
		{50, 28, nil, 0, zonePartial},
		{51, 28, nil, 10 * second, zoneNormal},
		{51, 29, nil, 100 * second, zonePartial},
		{2, 1, nil, 10 * second, zoneNormal},
		{3, 2, nil, 10 * second, zoneNormal},
		{4, 3, nil, 0, zonePartial},
		{10, 6, func(p *Policy) { p.LargeClusterThreshold = 5 }, 100 * second, zonePartial},
		{10, 6, func(p *Policy) { p.LargeClusterThreshold, p.SecondaryEvictionRate = 5, 0 }, 0, zonePartial},
		{10, 6, func(p *Policy) { p.UnhealthyZoneThreshold = 0.7 }, 10 * second, zoneNormal},
		{10, 2, func(p *Policy) { p.EvictionRate, p.SecondaryEvictionRate = 0, 0 }, 0, zoneNormal},
		{10, 4, func(p *Policy) { p.EvictionRate = 2 }, second / 2, zoneNormal},
	} {
		t.Run(fmt.Sprintf("%d of %d", tc.down, tc.nodes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				names := named("n", tc.nodes)
				w.add("z", names...)
				w.cfg.Policy = DefaultPolicy()
				if tc.policy != nil {
					tc.policy(&w.cfg.Policy)
				}
				down := names[:tc.down]
				w.silence(down...)
				w.start()
				w.until(40 * second)
				if got := len(w.happened("Ready=Unknown")); got != tc.down {
					t.Errorf("%d nodes are Unknown, want %d", got, tc.down)
				}
				w.until(5 * time.Minute)
				var want []string
				if tc.apart > 0 {
					want = tainted(down[:min(len(down), 1+int((5*time.Minute-first)/tc.apart))], first, tc.apart)
				}
				w.expect("taints", noExecuteOnly, want...)
				for _, name := range down {
					if !strings.Contains(written(w.node(name).Spec.Taints), "unreachable:NoSchedule") {
						t.Errorf("%s is not closed to new pods", name)
					}
				}
				for name, value := range map[string]float64{
					"node_collector_zone_size":               float64(tc.nodes),
					"node_collector_unhealthy_nodes_in_zone": float64(tc.down),
					"node_collector_zone_health":             float64(100*(tc.nodes-tc.down)) / float64(tc.nodes),
					"node_collector_evictions_total":         float64(len(want)),
					"hawser_eviction_waiting_nodes":          float64(tc.down - len(want)),
				} {
					if got := w.metric(name, key("z")); got != value {
						t.Errorf("%s is %v, want %v", name, got, value)
					}
				}
				if got := (tally{tc.nodes - tc.down, tc.down}).state(w.cfg.UnhealthyZoneThreshold); got != tc.state {
					t.Errorf("state %v, want %v", got, tc.state)
				}
			})
		})
	}
}

// TestOneZoneOfTwo: a zone that is down as a whole is evicted from at the normal
// rate, and the other does not notice.
func TestOneZoneOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := named("a", 5), named("b", 5)
		w.add("a", a...)
		w.add("b", b...)
		w.silence(a...)
		w.silence(b[0])
		w.start()
		w.until(85 * second)
		want := append(tainted(a, 45050*time.Millisecond, 10*second)[:4], "45.05s b01 +unreachable:NoExecute")
		slices.Sort(want)
		got := w.happened(":NoExecute")
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestEverything: when the last zone goes, the taints of all are taken back; when
// one node is back, evictions go on at their rate and not all at once.
func TestEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := named("a", 3), named("b", 3)
		w.add("a", a...)
		w.add("b", b...)
		w.silence(a...)
		w.start()
		w.until(70 * second)
		w.expect("zone a", noExecuteOnly, "45.05s a01 +unreachable:NoExecute", "55.05s a02 +unreachable:NoExecute", "1m5.05s a03 +unreachable:NoExecute")
		w.silence(b...) // seen last at 1m5s
		w.until(100 * second)
		w.expect("not yet", noExecuteOnly)
		w.until(105 * second)
		got := w.happened(":NoExecute")
		slices.Sort(got)
		if want := []string{"1m45s a01 -unreachable:NoExecute", "1m45s a02 -unreachable:NoExecute", "1m45s a03 -unreachable:NoExecute"}; !slices.Equal(got, want) {
			t.Errorf("all down: got %q, want %q", got, want)
		}
		w.until(time.Hour - second)
		w.expect("for an hour", noExecuteOnly)
		if n := w.metric("hawser_eviction_rate_nodes_per_second", key("a")); n != 0 {
			t.Errorf("rate %v", n)
		}
		w.heal("b03") // noticed at 1h0m0s
		w.until(time.Hour + 40*second)
		// Zone a goes on at its rate, beginning with an empty bucket; zone b has
		// two that are quiet, which is not enough for a disruption.
		var want []string
		for _, s := range []string{"1h0m10.05s a01 b01", "1h0m20.05s a02 b02", "1h0m30.05s a03"} {
			at, names, _ := strings.Cut(s, " ")
			for name := range strings.FieldsSeq(names) {
				want = append(want, at+" "+name+" +unreachable:NoExecute")
			}
		}
		if got := w.happened(":NoExecute"); !slices.Equal(got, want) {
			t.Errorf("one is back: got %q, want %q", got, want)
		}
	})
}

// TestWhileStopped: what comes up while evictions are stopped is taken back as
// well, and the disruption, of twenty seconds, is no part of the silence of nodes.
func TestWhileStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 3)...)
		w.silence("n01", "n02")
		w.start()
		w.until(22 * second)
		w.silence("n03")                     // seen last at 25 s
		w.post("n03", corev1.ConditionFalse) // so that all are down from 40 s on
		w.until(42 * second)
		w.happened()
		n := w.node("n02")
		if _, _, err := w.change("n02", "", n.UID, func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, taint(corev1.TaintNodeUnreachable, "NoExecute"))
		}); err != nil {
			t.Fatal(err)
		}
		w.until(57 * second)
		w.expect("taken back", noExecuteOnly, "42s n02 +unreachable:NoExecute", "45s n02 -unreachable:NoExecute")
		w.heal("n01") // the disruption ends at 1m0s
		w.until(85*second - time.Millisecond)
		w.expect("not at 1m5s", []string{"n03 Ready"})
		w.until(85 * second)
		w.expect("twenty seconds later", []string{"n03 Ready"}, "1m25s n03 Ready=Unknown")
	})
}

// TestRestartDisrupted: a controller that starts in a disruption sees it before
// it evicts anybody.
func TestRestartDisrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 4)...)
		for _, name := range named("d", 6) {
			w.make(name, "z", corev1.ConditionUnknown)
		}
		w.start()
		w.until(10 * time.Minute)
		w.expect("partly down", noExecuteOnly)
		w.silence(named("n", 4)...)
		w.until(20 * time.Minute)
		w.expect("all down", noExecuteOnly)
	})
}
