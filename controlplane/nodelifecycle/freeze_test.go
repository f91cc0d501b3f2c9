package nodelifecycle

// Tests of nodes whose silence is excused.

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

// excuses are what Config.Excuse answers, by node.
type excuses struct {
	t      *testing.T
	mu     sync.Mutex
	byNode map[string][2]string // guarded by mu: reason and message
	until  time.Time            // guarded by mu: when all of them end
	asked  map[string]int
}

func (e *excuses) excuse(n *corev1.Node) (reason, message string, until time.Time, excused bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := readiness(n); s != corev1.ConditionUnknown {
		e.t.Errorf("asked about a node that is Ready=%s", s)
	}
	e.asked[n.Name]++
	r, ok := e.byNode[n.Name]
	return r[0], r[1], e.until, ok
}

func (e *excuses) set(reason, message string, names ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range names {
		e.byNode[name] = [2]string{reason, message}
	}
}

func (e *excuses) clear(names ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range names {
		delete(e.byNode, name)
	}
}

func excusing(w *world) *excuses {
	e := &excuses{t: w.t, byNode: map[string][2]string{}, asked: map[string]int{}}
	w.cfg.Excuse = e.excuse
	return e
}

// TestFreeze follows an excuse from its beginning to its end, beside a node that
// has none.
func TestFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := excusing(w)
		var frozen sync.Map // what the nodes are said to be frozen for, in turn
		w.cfg.Frozen = func(node, reason, _ string, _ time.Time) {
			before, _ := frozen.LoadOrStore(node, "")
			frozen.Store(node, before.(string)+reason+";")
		}
		w.add("z", named("n", 8)...)
		w.silence("n01", "n02", "n03")
		e.set("SiteOffline", "all sessions of site z parked together", "n02", "n03")
		w.start()
		w.until(2 * time.Minute)
		w.expect("only one is evicted from", noExecuteOnly, "45.05s n01 +unreachable:NoExecute")
		for _, name := range []string{"n02", "n03"} {
			if got := written(w.node(name).Spec.Taints); got != "unreachable:NoSchedule" || readiness(w.node(name)) != corev1.ConditionUnknown {
				t.Errorf("%s has taints %q and is Ready=%s", name, got, readiness(w.node(name)))
			}
		}
		want := []string{
			"45s n02 Warning EvictionFrozen: No pod is evicted from node n02: SiteOffline: all sessions of site z parked together",
			"45s n03 Warning EvictionFrozen: No pod is evicted from node n03: SiteOffline: all sessions of site z parked together",
		}
		if got := w.told(evictionFrozen); !slices.Equal(got, want) {
			t.Errorf("events %q", got)
		}
		if n := w.metric("hawser_eviction_frozen_nodes", "SiteOffline"); n != 2 {
			t.Errorf("%v frozen", n)
		}
		if n := w.metric("node_collector_unhealthy_nodes_in_zone", key("z")); n != 3 {
			t.Errorf("%v unhealthy: an excused node is not ready all the same", n)
		}
		// Later there is an excuse for the first too, which is too late; and for the second another.
		w.until(122 * second)
		e.set("ServerOffline", "own links down", "n01", "n02")
		w.until(125 * second)
		w.expect("the taint stays", noExecuteOnly)
		if got := w.told(evictionFrozen); len(got) != 1 || !strings.Contains(got[0], "n02: ServerOffline") {
			t.Errorf("events %q", got)
		}
		if a, b := w.metric("hawser_eviction_frozen_nodes", "SiteOffline"), w.metric("hawser_eviction_frozen_nodes", "ServerOffline"); a != 1 || b != 1 {
			t.Errorf("%v and %v frozen", a, b)
		}
		// The freeze ends: all stay queued and are released at the rate of the zone.
		w.until(127 * second)
		e.clear("n01", "n02", "n03")
		w.until(10 * time.Minute)
		got := w.happened(":NoExecute")
		at, names := make([]string, len(got)), make([]string, len(got))
		for i, s := range got {
			at[i], names[i], _ = strings.Cut(s, " ")
		}
		slices.Sort(names)
		if !slices.Equal(at, []string{"2m10.05s", "2m20.05s"}) || !slices.Equal(slices.Compact(names), []string{
			"n02 +unreachable:NoExecute", "n03 +unreachable:NoExecute",
		}) {
			t.Errorf("afterwards %q", got)
		}
		if got := w.told(evictionResumed); len(got) != 2 || !strings.HasPrefix(got[0], "2m10s n02 Normal EvictionResumed: Node n02 ") || !strings.Contains(got[0], "ServerOffline") {
			t.Errorf("events %q", got)
		}
		if a, b := w.metric("hawser_eviction_frozen_nodes", "SiteOffline"), w.metric("hawser_eviction_frozen_nodes", "ServerOffline"); a != 0 || b != 0 {
			t.Errorf("%v and %v frozen", a, b)
		}
		for node, want := range map[string]any{"n01": nil, "n02": "SiteOffline;ServerOffline;;", "n03": "SiteOffline;;"} {
			if got, _ := frozen.Load(node); got != want {
				t.Errorf("it is told of %s that it is frozen for %v, want %v", node, got, want)
			}
		}
	})
}

// TestFreezeEndsAtAnotherTime: what is said of the end of a freeze follows the evidence.
func TestFreezeEndsAtAnotherTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := excusing(w)
		var mu sync.Mutex
		var told []time.Time
		w.cfg.Frozen = func(_, _, _ string, until time.Time) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, until)
		}
		w.add("z", named("n", 5)...)
		w.silence("n01")
		first, second := time.Now().Add(24*time.Hour), time.Now().Add(time.Hour)
		e.until = first
		e.set("ServerLostNetwork", "until tomorrow", "n01")
		w.start()
		w.until(2 * time.Minute)
		e.mu.Lock()
		e.until = second
		e.mu.Unlock()
		e.set("ServerLostNetwork", "for an hour", "n01")
		w.until(4 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if !slices.EqualFunc(told, []time.Time{first, second}, time.Time.Equal) {
			t.Errorf("the end is said to be at %v, want %v and then %v", told, first, second)
		}
		if got := w.told(evictionFrozen); len(got) != 2 || !strings.HasPrefix(got[0], "2m5s ") || !strings.Contains(got[0], "for an hour") {
			t.Errorf("events %q", got)
		}
	})
}

// TestFreezeIsToldAgain: the event of a long freeze is always younger than an API server keeps
// events for. The freeze is begun once.
func TestFreezeIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := excusing(w)
		begun := 0
		w.cfg.Frozen = func(_, _, _ string, _ time.Time) { begun++ }
		w.add("z", named("n", 5)...)
		w.silence("n01")
		e.set("Autonomy", "kept for 12h0m0s", "n01")
		w.start()
		w.until(2 * time.Hour)
		var times []string
		for _, event := range w.told(evictionFrozen) {
			at, _, _ := strings.Cut(event, " ")
			times = append(times, at)
		}
		slices.Sort(times)
		if want := []string{"1h0m45s", "1h30m45s", "30m45s", "45s"}; !slices.Equal(times, want) || begun != 1 {
			t.Errorf("told at %v, want %v; begun %d times", times, want, begun)
		}
	})
}

// slowSink is an API that takes an event in five milliseconds, and notes the nodes of those.
type slowSink struct {
	mu    sync.Mutex
	nodes map[string]int // guarded by mu
}

func (s *slowSink) Create(e *corev1.Event) (*corev1.Event, error) {
	time.Sleep(5 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Reason == evictionFrozen {
		s.nodes[e.InvolvedObject.Name]++
	}
	return e, nil
}

func (s *slowSink) Update(e *corev1.Event) (*corev1.Event, error)          { return s.Create(e) }
func (s *slowSink) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) { return s.Create(e) }

// TestFreezeOfManyIsTold: when many nodes fall silent together each freeze comes to the API, once,
// though an event recorder drops what comes to a full queue.
func TestFreezeOfManyIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := excusing(w)
		nodes := named("n", 5000)
		w.add("z", nodes...)
		w.add("y", "well")
		sink := &slowSink{nodes: map[string]int{}}
		events := record.NewBroadcaster()
		defer events.Shutdown()
		events.StartRecordingToSink(sink)
		w.cfg.Freezes = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "node-controller"})
		w.start()
		w.silence(nodes...)
		e.set("SiteOffline", "nobody of the site can be reached", nodes...)
		w.until(5 * time.Minute)
		sink.mu.Lock()
		defer sink.mu.Unlock()
		if len(sink.nodes) != len(nodes) {
			t.Errorf("of %d freezes %d were told", len(nodes), len(sink.nodes))
		}
		for node, n := range sink.nodes {
			if n != 1 {
				t.Errorf("the freeze of %s was told %d times", node, n)
			}
		}
	})
}

// TestFreezeWhileQueued: an excuse that comes between a pass and a node's turn counts.
func TestFreezeWhileQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := excusing(w)
		w.add("z", named("n", 5)...)
		w.silence("n01", "n02")
		w.start()
		w.until(55 * second)
		w.expect("the first", noExecuteOnly, "45.05s n01 +unreachable:NoExecute")
		e.set("ServerOffline", "", "n01", "n02")
		w.until(5 * time.Minute)
		w.expect("the second is not, and the first stays so", noExecuteOnly)
	})
}

// TestPanicCostsItsNode: a node over which the controller panics is not evicted
// from, and nobody else notices.
func TestPanicCostsItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var odd atomic.Bool
		odd.Store(true)
		w.cfg.Excuse = func(n *corev1.Node) (string, string, time.Time, bool) {
			if n.Name == "n01" && odd.Load() {
				panic("cannot judge n01")
			}
			return "", "", time.Time{}, false
		}
		w.add("z", named("n", 5)...)
		w.silence("n01", "n02")
		w.start()
		w.until(2 * time.Minute)
		w.expect("the other", noExecuteOnly, "45.05s n02 +unreachable:NoExecute")
		if w.logs.count("cannot judge n01") == 0 || w.logs.count("freeze_test.go") == 0 {
			t.Error("it was not told, or without a stack")
		}
		odd.Store(false)
		w.until(127 * second)
		w.expect("afterwards", noExecuteOnly, "2m5.05s n01 +unreachable:NoExecute")
	})
}

// TestOrder: of nodes that are queued together, the one silent for longest is first.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := excusing(w)
		w.add("z", named("n", 9)...)
		e.set("SiteOffline", "x", "n01", "n02", "n03")
		w.silence("n02")
		w.start()
		w.until(12 * second)
		w.silence("n03")
		w.until(22 * second)
		w.silence("n01")
		w.until(122 * second)
		e.clear("n01", "n02", "n03")
		w.until(150 * second)
		w.expect("in order", noExecuteOnly, "2m5.05s n02 +unreachable:NoExecute", "2m15.05s n03 +unreachable:NoExecute", "2m25.05s n01 +unreachable:NoExecute")
	})
}

// TestThaw: a freeze ends when the node speaks, whatever it says, and when it is
// deleted; a node that speaks is not asked about.
func TestThaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := excusing(w)
		w.add("z", named("n", 9)...)
		w.silence("n01", "n02", "n03")
		e.set("", "", "n01", "n02", "n03")
		w.start()
		w.until(62 * second)
		if n := w.metric("hawser_eviction_frozen_nodes", unexplained); n != 3 {
			t.Errorf("%v frozen", n)
		}
		w.heal("n01")
		w.post("n02", corev1.ConditionFalse)
		if err := w.store.Delete(nodesGVR, "", "n03"); err != nil {
			t.Fatal(err)
		}
		w.until(70 * second)
		w.expect("one says that it is not ready", noExecuteOnly, "1m5.05s n02 +not-ready:NoExecute")
		if got := w.told(evictionResumed); len(got) != 2 || !strings.Contains(got[0], "the node is ready") || !strings.Contains(got[1], "not ready") {
			t.Errorf("events %q", got)
		}
		if n := w.metric("hawser_eviction_frozen_nodes", unexplained); n != 0 {
			t.Errorf("%v frozen", n)
		}
	})
}

// TestFreezeSurvivesRestart: an excused node is not evicted from by the next
// controller, which counts it anew.
func TestFreezeSurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := excusing(w)
		w.add("z", named("n", 5)...)
		w.silence("n01")
		e.set("SiteOffline", "x", "n01")
		w.start()
		w.until(60 * second)
		w.halt()
		w.start()
		w.until(2 * time.Minute)
		w.expect("never", noExecuteOnly)
		if got := w.told(evictionFrozen); len(got) != 2 {
			t.Errorf("events %q", got)
		}
		if n := w.metric("hawser_eviction_frozen_nodes", "SiteOffline"); n != 1 {
			t.Errorf("%v frozen", n)
		}
	})
}
