package nodelifecycle

// Tests of whom is evicted from, and when.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

var noExecuteOnly = []string{":NoExecute"}

// tainted writes the history of nodes that get their taints one after another.
func tainted(names []string, first, apart time.Duration) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = fmt.Sprintf("%v %s +unreachable:NoExecute", first+time.Duration(i)*apart, name)
	}
	return out
}

// TestLeftOver: a node that has not spoken yet does not keep the taint that
// somebody left it, and keeps the one that somebody gives it.
func TestLeftOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "other")
		n := w.make("n", "z", "")
		evict := func() {
			if _, _, err := w.change("n", "", n.UID, func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, taint(corev1.TaintNodeUnreachable, "NoExecute"))
			}); err != nil {
				t.Fatal(err)
			}
		}
		evict()
		w.start()
		w.until(7 * second)
		evict()
		w.until(20 * second)
		got := w.happened(":NoExecute")
		// The first writer of the taints may lose a race and try again.
		if len(got) != 3 || !strings.HasSuffix(got[1], "n -unreachable:NoExecute") || got[2] != "7s n +unreachable:NoExecute" {
			t.Errorf("got %q", got)
		}
	})
}

// TestChangedMeanwhile: a node that becomes ready at the moment its taint is to
// be exchanged is not given the other one.
func TestChangedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 5)...)
		w.silence("n01")
		var armed atomic.Bool
		w.client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if armed.CompareAndSwap(true, false) {
				n := w.node("n01")
				if _, _, err := w.change("n01", "", n.UID, func(n *corev1.Node) { n.Status.Conditions = conditions(corev1.ConditionTrue) }); err != nil {
					t.Error(err)
				}
			}
			return false, nil, nil
		})
		w.start()
		w.until(47 * second)
		w.expect("tainted", noExecuteOnly, "45.05s n01 +unreachable:NoExecute")
		w.post("n01", corev1.ConditionFalse)
		w.until(48 * second)
		armed.Store(true)
		w.until(60 * second)
		got := w.happened(":NoExecute")
		if armed.Load() || len(got) != 1 || !strings.HasSuffix(got[0], "n01 -unreachable:NoExecute") {
			t.Errorf("got %q", got)
		}
	})
}

// TestHealing: a node that comes back before its turn is never tainted, and one
// that comes back after it loses the taint with the next pass.
func TestHealing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 8)...)
		w.silence("n01", "n02", "n03")
		w.start()
		w.until(48 * second)
		w.expect("first", noExecuteOnly, "45.05s n01 +unreachable:NoExecute")
		w.heal("n02")
		w.until(58 * second)
		w.expect("second is spared", noExecuteOnly, "55.05s n03 +unreachable:NoExecute")
		w.heal("n01")
		w.until(5 * time.Minute)
		w.expect("first is healed", noExecuteOnly, "1m0s n01 -unreachable:NoExecute")
	})
}

// TestFlapping: gaps below the grace period do nothing at all; longer ones do
// what they do each time, at the rate of the zone.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 4)...)
		w.make("f", "z", corev1.ConditionTrue)
		w.start()
		for d := 39 * second; d < 10*time.Minute; d += 39 * second {
			w.until(d)
			w.renew("f")
		}
		w.expect("gaps of 39 s", []string{" f "})
		for i := range 5 { // each minute 52 s of silence
			w.until(time.Duration(11+i) * time.Minute)
			w.heal("f")
			w.until(time.Duration(11+i)*time.Minute + 8*second)
			w.silence("f")
		}
		w.until(16 * time.Minute)
		var unknown, add, remove int
		for _, s := range w.happened(" f ") {
			switch {
			case strings.HasSuffix(s, "Ready=Unknown"):
				unknown++
			case strings.HasSuffix(s, "+unreachable:NoExecute"):
				add++
			case strings.HasSuffix(s, "-unreachable:NoExecute"):
				remove++
			}
		}
		if unknown != 6 || add != 6 || remove < 5 {
			t.Errorf("%d times unknown, %d tainted, %d freed", unknown, add, remove)
		}
	})
}

// TestNotReady: a node that says so is tainted at the rate; when it falls silent
// its pods are already being evicted, so the taint only changes its name.
func TestNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 5)...)
		w.pod("p", "n01", corev1.ConditionTrue)
		w.start()
		w.until(2 * second)
		w.post("n01", corev1.ConditionFalse)
		w.until(6 * second)
		w.expect("not ready", []string{"n01"}, "2s n01 Ready=False", "2s n01 +not-ready:NoSchedule", "5.05s n01 +not-ready:NoExecute")
		w.silence("n01") // heard last at 1 s, seen at 5 s with the status
		w.until(45*second - time.Millisecond)
		if got := w.readyPods(); len(got) != 1 {
			t.Error("the pod of a node that speaks is marked not ready")
		}
		w.until(50 * second)
		if got := w.readyPods(); len(got) != 0 {
			t.Error("the pod of a quiet node is ready")
		}
		w.expect("quiet", []string{"n01"}, "45s n01 Ready=Unknown", "45s n01 -not-ready:NoSchedule", "45s n01 +unreachable:NoSchedule",
			"50s n01 -not-ready:NoExecute", "50s n01 +unreachable:NoExecute")
		w.post("n01", corev1.ConditionFalse)
		w.until(55 * second)
		w.expect("speaks again", []string{"n01"}, "50s n01 Ready=False", "50s n01 -unreachable:NoSchedule", "50s n01 +not-ready:NoSchedule",
			"55s n01 -unreachable:NoExecute", "55s n01 +not-ready:NoExecute")
		if got := w.told(nodeNotReady); len(got) != 1 || !strings.Contains(got[0], " ns/p ") {
			t.Errorf("events %q about what the node itself said", got)
		}
	})
}

// TestExcluded: nodes with the label do not count, and are evicted from.
func TestExcluded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 4)...)
		w.add("z", named("x", 6)...)
		w.add("only", "y01")
		for _, name := range append(named("x", 6), "y01") {
			n := w.node(name)
			if _, _, err := w.change(name, "", n.UID, func(n *corev1.Node) { n.Labels[excludeDisruption] = "" }); err != nil {
				t.Fatal(err)
			}
		}
		w.silence("x01", "x02", "x03", "x04", "x05", "x06", "y01")
		w.start()
		w.until(75 * second)
		got := w.happened(":NoExecute")
		want := []string{
			"45.05s x01 +unreachable:NoExecute", "45.05s y01 +unreachable:NoExecute",
			"55.05s x02 +unreachable:NoExecute", "1m5.05s x03 +unreachable:NoExecute",
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		for zone, size := range map[string]float64{key("z"): 4, key("only"): 0} {
			if n := w.metric("node_collector_zone_size", zone); n != size {
				t.Errorf("zone %q has %v nodes", zone, n)
			}
			if n := w.metric("node_collector_unhealthy_nodes_in_zone", zone); n != 0 {
				t.Errorf("zone %q has %v unhealthy nodes", zone, n)
			}
		}
	})
}

// TestDeleted: a deleted node is taken leave of once and not written to again; a
// new one of that name is another.
func TestDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 3)...)
		w.add("y", "other")
		w.silence("n01", "n02")
		w.start()
		w.until(47 * second)
		if got := w.told(registeredNode); len(got) != 4 || got[0] != "0s n01 Normal RegisteredNode: Node n01 event: Registered Node n01 in Controller" {
			t.Errorf("events %q", got)
		}
		if got, want := w.told(nodeNotReady), []string{
			"40s n01 Normal NodeNotReady: Node n01 status is now: NodeNotReady",
			"40s n02 Normal NodeNotReady: Node n02 status is now: NodeNotReady",
		}; !slices.Equal(got, want) {
			t.Errorf("events %q", got)
		}
		for _, name := range []string{"n02", "other"} {
			if err := w.store.Delete(nodesGVR, "", name); err != nil {
				t.Fatal(err)
			}
		}
		w.silence("other")
		w.happened()
		w.until(10 * time.Minute)
		w.expect("deleted", []string{"n02", "other"})
		want := []string{
			"50s n02 Normal RemovingNode: Node n02 event: Removing Node n02 from Controller",
			"50s other Normal RemovingNode: Node other event: Removing Node other from Controller",
		}
		if got := w.told(removingNode); !slices.Equal(got, want) {
			t.Errorf("events %q", got)
		}
		for _, m := range []struct {
			name, zone string
			value      float64
		}{
			{"node_collector_zone_size", "z", 2},
			{"node_collector_unhealthy_nodes_in_zone", "z", 1},
			{"node_collector_zone_size", "y", 0},
			{"node_collector_zone_health", "y", 100},
			{"node_collector_evictions_total", "y", 0},
		} {
			if got := w.metric(m.name, key(m.zone)); got != m.value {
				t.Errorf("%s of zone %s is %v, want %v", m.name, m.zone, got, m.value)
			}
		}
		// Deleted and made again between two passes: the silence of the old one is not the new one's.
		if err := w.store.Delete(nodesGVR, "", "n01"); err != nil {
			t.Fatal(err)
		}
		w.make("n01", "z", corev1.ConditionTrue)
		w.until(10*time.Minute + 44*second)
		if gone, registered := w.told(removingNode), w.told(registeredNode); len(gone) != 1 || len(registered) != 1 {
			t.Errorf("events %q %q", gone, registered)
		}
		w.expect("the new one", []string{"n01"})
		w.until(11 * time.Minute)
		w.expect("the new one later", []string{"n01 Ready", "NoExecute"}, "10m45s n01 Ready=Unknown", "10m50.05s n01 +unreachable:NoExecute")
	})
}

// TestRestart: silence is counted anew, taints stay as they are, and what is due
// comes at the rate.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 10)...)
		w.silence("n01", "n02", "n03")
		w.start()
		w.until(47 * second)
		w.silence("n04", "n05") // seen last at 45 s
		w.halt()
		added := w.node("n01").Spec.Taints
		w.happened()
		w.until(82 * second)
		w.start()
		w.until(121 * second)
		w.expect("two go on where they were", []string{"Ready", "NoExecute"},
			"1m22.05s n02 +unreachable:NoExecute", "1m32.05s n03 +unreachable:NoExecute")
		w.until(140 * second)
		got := w.happened("Ready", "NoExecute")
		slices.Sort(got[:min(2, len(got))])
		if want := []string{"2m2s n04 Ready=Unknown", "2m2s n05 Ready=Unknown", "2m7.05s n04 +unreachable:NoExecute", "2m17.05s n05 +unreachable:NoExecute"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if now := w.node("n01").Spec.Taints; !slices.EqualFunc(now, added, func(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.TimeAdded.Equal(b.TimeAdded) }) {
			t.Errorf("taints were %+v, are %+v", added, now)
		}
		w.writes()
		w.until(200 * second)
		if n := w.writes(); n != 0 {
			t.Errorf("%d writes when nothing changes", n)
		}
	})
}

// TestFailingTaints: a taint that cannot be written is tried again, at the rate.
func TestFailingTaints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 5)...)
		w.silence("n01")
		var tries []time.Duration
		w.client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			p, _ := a.(clienttesting.PatchAction)
			if strings.Contains(string(p.GetPatch()), "NoExecute") && len(tries) < 3 {
				tries = append(tries, w.since())
				return true, nil, errors.New("no answer") // but the server answers other requests
			}
			return false, nil, nil
		})
		w.start()
		w.until(5 * time.Minute)
		w.expect("in the end", noExecuteOnly, "1m15.05s n01 +unreachable:NoExecute")
		if want := []time.Duration{45050 * time.Millisecond, 55050 * time.Millisecond, 65050 * time.Millisecond}; !slices.Equal(tries, want) {
			t.Errorf("tries at %v, want %v", tries, want)
		}
		if n := w.logs.count("cannot be reached"); n != 0 {
			t.Error("one failing request was taken for an outage")
		}
	})
}

// TestMoved: a node that changes its zone waits in that zone's line only.
func TestMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("a", named("a", 6)...)
		w.add("b", named("b", 3)...)
		w.silence("a01", "a02", "a03")
		w.start()
		w.until(46 * second)
		n := w.node("a02")
		if _, _, err := w.change("a02", "", n.UID, func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "b" }); err != nil {
			t.Fatal(err)
		}
		w.until(2 * time.Minute)
		w.expect("moved", noExecuteOnly, "45.05s a01 +unreachable:NoExecute", "50.05s a02 +unreachable:NoExecute", "55.05s a03 +unreachable:NoExecute")
		if a, b := w.metric("node_collector_evictions_total", key("a")), w.metric("node_collector_evictions_total", key("b")); a != 2 || b != 1 {
			t.Errorf("evictions %v and %v", a, b)
		}
	})
}

// TestConditionTakenAway: a node that waits for its taint and then says nothing of its readiness any
// more takes no turn of the zone's other nodes.
func TestConditionTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("a", named("a", 6)...)
		w.start()
		w.until(46 * second)
		w.post("a01", corev1.ConditionFalse)
		w.post("a02", corev1.ConditionFalse) // its turn is 10 s after that of the other
		w.until(56 * second)
		if n := w.metric("hawser_eviction_waiting_nodes", key("a")); n != 1 {
			t.Fatalf("%v nodes wait", n)
		}
		n := w.node("a02")
		if _, _, err := w.change("a02", "", n.UID, func(n *corev1.Node) { n.Status.Conditions = nil }); err != nil {
			t.Fatal(err)
		}
		w.until(2 * time.Minute)
		if n := w.metric("hawser_eviction_waiting_nodes", key("a")); n != 0 {
			t.Errorf("%v nodes wait", n)
		}
	})
}
