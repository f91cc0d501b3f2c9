package nodelifecycle

// Tests that time in which nobody could be heard neither begins the silence of a
// node anew nor adds to it, and that a taint outlives it.

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// A life is a time in which a controller runs.
type life struct{ from, to time.Duration }

// live has controllers run one after the other.
func (w *world) live(lives ...life) {
	w.t.Helper()
	for _, l := range lives {
		w.until(l.from)
		w.start()
		w.until(l.to)
		w.halt()
	}
}

// every is lives that begin this far apart, with a gap at the end of each.
func every(period, gap time.Duration, n int) []life {
	var out []life
	for i := range n {
		from := time.Duration(i) * period
		out = append(out, life{from, from + period - gap})
	}
	return out
}

// TestRestartsPauseSilence: what a node had been silent for when the controller
// ended counts when it is back, as of its last pass, if it was longer than a
// heartbeat's period. The time between does not.
func TestRestartsPauseSilence(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lives []life
		do    func(w *world) // between the first life and the second
		want  time.Duration  // when the node is Unknown, and zero if never
	}{
		{"none", []life{{0, 200 * second}}, nil, 40 * second},
		{"one after 22 s, the last two unseen", []life{{0, 22 * second}, {82 * second, 200 * second}}, nil, 102 * second},
		{"one after 38 s", []life{{0, 38 * second}, {time.Hour, 2 * time.Hour}}, nil, time.Hour + 5*second},
		{"one after less than is remembered", []life{{0, 14 * second}, {60 * second, 200 * second}}, nil, 100 * second},
		{"every 18 s", every(20*second, 2*second, 9), nil, 50 * second},
		{"every 24 s, and long gaps", every(time.Minute, 36*second, 9), nil, 80 * second},
		{"it is heard meanwhile", []life{{0, 38 * second}, {60 * second, 200 * second}}, func(w *world) {
			w.until(50 * second)
			w.renew("n")
		}, 100 * second},
		{"it posts meanwhile", []life{{0, 38 * second}, {60 * second, 200 * second}}, func(w *world) {
			w.until(50 * second)
			w.post("n", corev1.ConditionTrue)
		}, 100 * second},
		{"another of that name", []life{{0, 38 * second}, {60 * second, 200 * second}}, func(w *world) {
			if err := w.store.Delete(nodesGVR, "", "n"); err != nil {
				w.t.Fatal(err)
			}
			w.make("n", "z", corev1.ConditionTrue)
		}, 100 * second},
		{"it is heard every time", every(20*second, 2*second, 9), func(w *world) { w.beating["n"] = true }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.add("z", "n", "other")
				w.silence("n")
				w.live(tc.lives[0])
				if tc.do != nil {
					tc.do(w)
				}
				w.live(tc.lives[1:]...)
				var want []string
				if tc.want > 0 {
					want = []string{fmt.Sprintf("%v n Ready=Unknown", tc.want)}
				}
				w.expect("the node", []string{"Ready="}, want...)
			})
		})
	}
}

// TestRestartsKeepTaints: a taint stays through restarts after each of which the
// node is excused, with the time at which it was added, and so does one that is
// still to come.
func TestRestartsKeepTaints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := excusing(w)
		w.add("z", "n", "other")
		w.silence("n")
		w.live(life{0, 50 * second})
		w.expect("tainted", noExecuteOnly, "45.05s n +unreachable:NoExecute")
		added := w.node("n").Spec.Taints
		for i := range 5 {
			from := time.Duration(i+1) * 2 * time.Minute
			e.set("ServerJustStarted", "x", "n")
			w.live(life{from, from + time.Minute})
			e.clear("n")
			w.until(from + time.Minute)
			w.live(life{from + time.Minute, from + 110*second})
		}
		w.expect("it stays", noExecuteOnly)
		if got := w.node("n").Spec.Taints; !slices.EqualFunc(got, added, func(a, b corev1.Taint) bool {
			return a.Key == b.Key && a.Effect == b.Effect && a.TimeAdded.Equal(b.TimeAdded)
		}) {
			t.Errorf("taints %v, were %v", got, added)
		}
	})
}

// TestAllDownKeepsJudged: when no node of any zone is ready, those of which more is
// known than their silence keep their taints, and nobody gets one.
func TestAllDownKeepsJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cfg.Judged = func(n *corev1.Node) bool { return n.Name != "n02" }
		w.add("z", named("n", 5)...)
		w.silence("n01", "n02")
		w.start()
		w.until(60 * second)
		w.expect("two", noExecuteOnly, "45.05s n01 +unreachable:NoExecute", "55.05s n02 +unreachable:NoExecute")
		w.silence(named("n", 5)...)
		w.until(20 * time.Minute)
		w.expect("one is called off", noExecuteOnly, "1m35s n02 -unreachable:NoExecute")
		w.heal("n03", "n04", "n05")
		w.until(20*time.Minute + 20*second)
		got := w.happened(":NoExecute")
		if len(got) != 1 || !strings.HasSuffix(got[0], "n02 +unreachable:NoExecute") {
			t.Errorf("three are back: %q", got)
		}
	})
}

// TestOutagePausesSilence: an outage of the API is no silence, and what a node had
// been silent for before counts.
func TestOutagePausesSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "n", "other")
		w.silence("n")
		w.start()
		w.until(32 * second) // of which 31 are known to have been heard: the other beats
		w.mu.Lock()
		w.outage = true
		w.mu.Unlock()
		w.until(10*time.Minute + 2*second)
		w.mu.Lock()
		w.outage = false
		w.mu.Unlock()
		w.until(15 * time.Minute)
		// It is back at 10m5s, when the node has been silent for 30 s or a pass more.
		w.expect("after the outage", []string{"Ready=", "NoExecute"}, "10m15s n Ready=Unknown", "10m20.05s n +unreachable:NoExecute")
	})
}

// TestStandstillPausesSilence is the same of a process that did not run.
func TestStandstillPausesSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t)
		pass := func() int {
			t.Helper()
			before := fl.writes
			if err := fl.run.pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			return fl.writes - before
		}
		pass()
		<-time.After(30 * second)
		if n := pass(); n != 0 {
			t.Fatalf("%d nodes were lost after 30 s", n)
		}
		<-time.After(time.Hour)
		fl.run.hold(time.Hour, time.Now())
		if n := pass(); n != 0 {
			t.Errorf("%d nodes were lost while nobody listened", n)
		}
		<-time.After(10*second - 1)
		if n := pass(); n != 0 {
			t.Errorf("%d nodes were lost too early", n)
		}
		<-time.After(1)
		if n := pass(); n != fleetNodes {
			t.Errorf("%d nodes were lost 10 s later, want all", n)
		}
	})
}

// TestMemoryOff: where the memory cannot be read or written, that is told once and
// silence begins anew, and nothing else suffers.
func TestMemoryOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.client.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetNamespace() != "kube-system" {
				return false, nil, nil
			}
			return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), memoryName, nil)
		})
		w.add("z", "n", "other")
		w.silence("n")
		w.live(life{0, 34 * second}, life{40 * second, 100 * second})
		w.expect("anew", []string{"Ready=", "NoExecute"}, "1m20.08s n Ready=Unknown", "1m25.15s n +unreachable:NoExecute")
		for text, want := range map[string]int{"cannot write down": 2, "cannot read how long": 2} {
			if n := w.logs.count(text); n != want {
				t.Errorf("%q was told %d times, want %d", text, n, want)
			}
		}
	})
}

// TestMemoryConflict: another controller's write of the memory is no obstacle.
func TestMemoryConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var conflicts atomic.Int64
		w.client.PrependReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetNamespace() == "kube-system" && conflicts.Add(1)%2 == 1 {
				return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), memoryName, nil)
			}
			return false, nil, nil
		})
		w.add("z", "n", "other")
		w.silence("n")
		w.live(life{0, 34 * second}, life{40 * second, 100 * second})
		w.expect("goes on", []string{"Ready="}, "50s n Ready=Unknown")
		if n := w.logs.count("cannot"); n != 0 || conflicts.Load() == 0 {
			t.Errorf("told %d times, %d conflicts", n, conflicts.Load())
		}
	})
}

// TestMemoryIsBounded: of too many nodes the longest silent are remembered.
func TestMemoryIsBounded(t *testing.T) {
	fl := newFleet(t)
	if err := fl.run.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, rec := range fl.run.records.byName {
		var i int
		if _, err := fmt.Sscanf(name, "node-%d", &i); err != nil {
			t.Fatal(err)
		}
		rec.heard = now.Add(-20*second - time.Duration(i)*time.Millisecond)
		rec.node.Name = strings.Repeat("x", 200) + name
	}
	for i := range fl.run.observations {
		fl.run.observations[i].node = fl.run.observations[i].rec.node
	}
	fl.run.remember(t.Context())
	text := fl.run.memory.lease.Annotations[memoryKey]
	var got map[string]spell
	if err := json.Unmarshal([]byte(text), &got); err != nil || len(text) > maxMemory || len(got) < 500 || len(got) >= fleetNodes {
		t.Fatalf("%d bytes, %d nodes, %v", len(text), len(got), err)
	}
	for name := range maps.Keys(got) {
		if name < strings.Repeat("x", 200)+fmt.Sprintf("node-%04d", fleetNodes-len(got)) {
			t.Fatalf("%s is remembered, one that was silent for longer is not", name)
		}
	}
}

// TestGoesBack: a renewTime that is not later than the one before is no heartbeat,
// wherever it is seen; the one after it is.
func TestGoesBack(t *testing.T) {
	back := func(w *world, by time.Duration) {
		w.mu.Lock()
		w.skew["n"] = -w.since() - by
		w.mu.Unlock()
		w.renew("n")
	}
	for _, tc := range []struct {
		name string
		do   func(w *world)
		want time.Duration
	}{
		{"each further back", func(w *world) {
			for i := time.Duration(1); i < 20; i++ {
				w.until(i*10*second + 2*second)
				back(w, i*second)
			}
		}, 40 * second},
		{"once", func(w *world) {
			w.until(32 * second)
			back(w, time.Hour)
		}, 40 * second},
		{"once, and on from there", func(w *world) {
			w.until(22 * second)
			back(w, time.Hour)
			w.until(32 * second)
			back(w, time.Hour-10*second)
		}, 75 * second}, // heard at 32 s
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.add("z", "n", "other")
				w.silence("n")
				w.start()
				tc.do(w)
				if d := 200 * second; w.since() < d {
					w.until(d)
				}
				w.expect("the node", []string{"Ready="}, fmt.Sprintf("%v n Ready=Unknown", tc.want))
			})
		})
	}
}

// FuzzMemory: whatever the annotation holds, no node has been silent for less than
// nothing, nor is lost at once by more than an hour.
func FuzzMemory(f *testing.F) {
	f.Add(`{"n":{"word":"x","ms":15000}}`)
	f.Add(`{"n":{"word":"x","ms":-1}}`)
	f.Add(`{"n":{"ms":9223372036854775807}}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		spells, err := decodeSpells(text)
		if err != nil && spells != nil {
			t.Errorf("both %v and %v", spells, err)
		}
		now := time.Unix(1e9, 0)
		n := node(nil, "Ready=True")
		n.UID = types.UID("u")
		for _, s := range spells {
			var r nodeRecord
			r.hear(n, nil, newArrivals(), now)
			s.Word = r.word(n)
			r.recall(n, s, now)
			if d := now.Sub(r.heard); d < 0 || d > time.Hour {
				t.Errorf("%+v is a silence of %v", s, d)
			}
		}
	})
}
