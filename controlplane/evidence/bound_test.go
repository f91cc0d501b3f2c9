package evidence

// Tests that no excuse is given anew while a node stays silent.

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestExcusesAreBounded: whatever comes and goes while a node stays Unknown, its
// excuse ends with one term from when that was found.
func TestExcusesAreBounded(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(w *world)
		over time.Duration // since a1 was found Unknown
	}{
		{"the site falls silent once", func(*world) {}, time.Hour - 40*time.Second},
		{"the site's sessions come and go", func(w *world) {
			for _, n := range []string{"a1", "a2"} {
				w.turn(n, Attached, "", 0)
			}
			pass(5 * time.Minute)
			for _, n := range []string{"a1", "a2"} {
				w.turn(n, Parked, Silent, 0)
			}
		}, time.Hour},
		{"a neighbour comes and goes with the node's session", func(w *world) {
			w.turn("a1", Attached, "", 0)
			pass(2 * time.Minute)
			w.turn("a1", Parked, Silent, 0)
			w.turn("a2", Attached, "", 0)
			pass(time.Second)
			w.turn("a2", Parked, Silent, 0)
		}, time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{})
				for _, n := range []string{"a1", "a2", "b1"} {
					w.node(n, n[:1], true)
				}
				pass(settled)
				w.silence("a1", "a2")
				found := time.Now()
				if got := w.reason("a1"); got != SiteLostNetwork {
					t.Fatalf("excuse %q", got)
				}
				var last time.Duration
				for time.Since(found) < 3*time.Hour {
					tc.do(w)
					pass(10 * time.Second)
					if w.reason("a1") != "" {
						last = time.Since(found)
					}
				}
				if last >= tc.over {
					t.Errorf("still excused %v after it was found Unknown, want less than %v", last, tc.over)
				}
			})
		})
	}
}

// TestUnknownLater: a node that says that it will be Unknown is so as of now.
func TestUnknownLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.node("a1", "", false)
		w.annotate("a1", NodeAutonomy, "1h")
		n := w.unknown("a1").DeepCopy()
		n.Status.Conditions[0].LastTransitionTime = metav1.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC)
		_, message, _, ok := w.judge.Excuse(n)
		if now := clock(time.Now()); !ok || !strings.Contains(message, "since "+now) || strings.Contains(message, "2255") {
			t.Errorf("at %s: %v, %s", now, ok, message)
		}
	})
}

// TestStartsAreBounded: a server that is started again and again excuses a node for
// twice the time that agents have to come back, counted from when it was found
// Unknown; and one that is stopped and goes on does no more.
func TestStartsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pass(settled)
		before := newWorld(t, Config{})
		before.node("a1", "a", false)
		before.condition("a1", TunnelConnected, corev1.ConditionFalse)
		n := before.unknown("a1")
		found := time.Now()
		var last time.Duration
		for range 20 {
			pass(5 * time.Second)
			w := newWorld(t, Config{})
			if err := w.nodes.Add(n); err != nil {
				t.Fatal(err)
			}
			for range 8 {
				pass(5 * time.Second)
				if w.reason("a1") == ServerJustStarted {
					last = time.Since(found)
				}
			}
		}
		if last < 100*time.Second || last >= 120*time.Second {
			t.Errorf("excused until %v after it was found Unknown, want just less than 2m0s", last)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.node("a1", "a", true)
		pass(settled)
		w.unknown("a1")
		found := time.Now()
		var last time.Duration
		w.judge.ticking, w.judge.ticked = true, found
		for range 20 {
			pass(30 * time.Second)
			if w.reason("a1") == ServerJustStarted {
				last = time.Since(found)
			}
		}
		if last < 60*time.Second || last >= 120*time.Second {
			t.Errorf("excused until %v after it was found Unknown by a process that is stopped every 30 s", last)
		}
	})
}

// TestLinksAreBounded: links that come and go excuse for a day in all.
func TestLinksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.node("a1", "a", true)
		w.node("b1", "b", true)
		pass(settled)
		w.silence("a1")
		found := time.Now()
		w.links = errDown{}
		var last time.Duration
		for time.Since(found) < 48*time.Hour {
			w.turn("a1", Attached, "", 0)
			pass(10 * time.Minute)
			w.turn("a1", Parked, Silent, 0)
			pass(10 * time.Minute)
			if w.reason("a1") != "" {
				last = time.Since(found)
			}
		}
		if last < 23*time.Hour || last >= 24*time.Hour {
			t.Errorf("excused until %v after it was found Unknown", last)
		}
	})
}

type errDown struct{}

func (errDown) Error() string { return "no network interface is up (eth0)" }
