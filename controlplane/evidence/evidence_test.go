package evidence

// Tests of judgements, on a virtual clock.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const settled = 10 * time.Minute // after the server's start

func TestExcuse(t *testing.T) {
	for _, tc := range []struct {
		name string
		conf Config
		do   func(w *world)
		want map[string]string
	}{
		{"one node alone, its site lives", Config{}, func(w *world) { w.silence("a1") }, map[string]string{"a1": ""}},
		{"one node alone in its site", Config{}, func(w *world) { w.silence("c1") }, map[string]string{"c1": ""}},
		{
			"a whole site",
			Config{},
			func(w *world) { w.silence("a1", "a2", "a3") },
			map[string]string{"a1": SiteLostNetwork, "a2": SiteLostNetwork, "a3": SiteLostNetwork},
		},
		{"two of three of a site", Config{}, func(w *world) { w.silence("a1", "a2") }, map[string]string{"a1": "", "a2": ""}},
		{
			"two sites at once",
			Config{},
			func(w *world) { w.silence("a1", "a2", "a3", "b1", "b2") },
			map[string]string{"a1": SiteLostNetwork, "b2": SiteLostNetwork},
		},
		{
			"everybody",
			Config{},
			func(w *world) { w.silence("a1", "a2", "a3", "b1", "b2", "c1", "n1", "n2") },
			map[string]string{"a1": ServerLostNetwork, "b1": ServerLostNetwork, "c1": ServerLostNetwork, "n1": ServerLostNetwork, "foreign": ""},
		},
		{"nodes without a zone are no site", Config{}, func(w *world) { w.silence("n1", "n2") }, map[string]string{"n1": "", "n2": ""}},
		{"a site, one of it closed by its host before", Config{}, func(w *world) {
			w.turn("a3", Parked, Closed, 0)
			w.silence("a1", "a2")
			w.unknown("a3")
		}, map[string]string{"a1": SiteLostNetwork, "a2": SiteLostNetwork, "a3": ""}},
		{"a site, one of it said goodbye before", Config{}, func(w *world) {
			w.turn("a3", Detached, Left, 0)
			w.silence("a1", "a2")
		}, map[string]string{"a1": SiteLostNetwork, "a3": ""}},
		{"a site whose nodes fell silent at different times", Config{}, func(w *world) {
			w.silence("a1")
			w.silence("a2")
			w.silence("a3")
		}, map[string]string{"a1": "", "a2": "", "a3": ""}},
		{"a site that sessions have not noticed yet", Config{}, func(w *world) {
			w.hang("a1")
			w.hang("a2")
			w.hang("a3")
			pass(41 * time.Second)
			w.unknown("a1")
		}, map[string]string{"a1": SiteLostNetwork}},
		{"a site that only one of its sessions has noticed yet", Config{}, func(w *world) {
			w.hang("a2")
			w.hang("a3")
			w.silence("a1")
			w.unknown("a2")
		}, map[string]string{"a1": SiteLostNetwork, "a2": SiteLostNetwork}},
		{"a site whose sessions are over", Config{}, func(w *world) {
			w.silence("a1", "a2", "a3")
			w.turn("a1", Detached, Silent, 40*time.Second)
		}, map[string]string{"a1": SiteLostNetwork}},
		{"a site that is back, before all of it is", Config{}, func(w *world) {
			w.silence("a1", "a2", "a3")
			w.turn("a2", Attached, "", 0)
			pass(59 * time.Second)
		}, map[string]string{"a1": SiteLostNetwork, "a2": SiteLostNetwork, "a3": SiteLostNetwork}},
		{"a site that is back for long", Config{}, func(w *world) {
			w.silence("a1", "a2", "a3")
			w.turn("a2", Attached, "", 0)
			pass(61 * time.Second)
		}, map[string]string{"a1": "", "a2": "", "a3": ""}},
		{"one node alone that is back", Config{}, func(w *world) {
			w.silence("a1")
			w.turn("a1", Attached, "", 0)
		}, map[string]string{"a1": ""}},
		{"a site that was back for a moment", Config{}, func(w *world) {
			w.silence("a1", "a2", "a3")
			w.turn("a2", Attached, "", 0)
			pass(30 * time.Second)
			w.turn("a2", Parked, Silent, 20*time.Second)
			pass(10 * time.Minute)
		}, map[string]string{"a1": SiteLostNetwork}},
		{"a site, one of which comes and goes", Config{}, func(w *world) {
			w.silence("a1", "a2", "a3")
			for range 3 {
				w.turn("a2", Attached, "", 0)
				pass(30 * time.Second)
				w.turn("a2", Parked, Silent, 0)
				w.turn("a2", Attached, "", 0)
			}
		}, map[string]string{"a1": SiteLostNetwork, "a2": SiteLostNetwork}},
		{"a site, one of which comes and goes and is gone", Config{}, func(w *world) {
			w.silence("a1", "a2", "a3")
			w.turn("a2", Attached, "", 0)
			pass(30 * time.Second)
			w.turn("a2", Parked, Silent, 0)
			pass(30 * time.Second)
		}, map[string]string{"a1": SiteLostNetwork, "a2": SiteLostNetwork}},
		{"one node that comes and goes while its site is back", Config{}, func(w *world) {
			w.silence("a1", "a2", "a3")
			w.turn("a1", Attached, "", 0)
			w.turn("a3", Attached, "", 0)
			for range 3 {
				w.turn("a2", Attached, "", 0)
				pass(30 * time.Second)
				w.turn("a2", Parked, Silent, 0)
			}
		}, map[string]string{"a2": ""}},
		{"a site for longer than its autonomy", Config{}, func(w *world) {
			w.silence("a1", "a2", "a3")
			pass(time.Hour)
		}, map[string]string{"a1": ""}},
		{"a site without autonomy", Config{SiteAutonomy: -1}, func(w *world) { w.silence("a1", "a2", "a3") }, map[string]string{"a1": ""}},
		{"everybody for longer than that", Config{}, func(w *world) {
			w.silence("a1", "a2", "a3", "b1", "b2", "c1", "n1", "n2")
			pass(time.Hour)
		}, map[string]string{"a1": "", "n1": ""}},
		{"the server's links", Config{}, func(w *world) {
			w.links = errors.New("no network interface is up (eth0)")
			w.silence("c1")
			pass(3 * time.Hour)
		}, map[string]string{"c1": ServerLostNetwork, "foreign": ""}},
		{"the server's links for longer than a day", Config{}, func(w *world) {
			w.links = errors.New("no network interface is up (eth0)")
			w.silence("c1")
			pass(24 * time.Hour)
		}, map[string]string{"c1": ""}},
		{"the server's links, and an agent beside it", Config{}, func(w *world) {
			w.links = errors.New("there is no network interface but the loopback")
			w.silence("c1")
			s := w.sessions["c1"]
			s.Changes[len(s.Changes)-1].Addr = "127.0.0.1:4711"
		}, map[string]string{"c1": ""}},
		{"closed by its host", Config{}, func(w *world) {
			w.turn("a1", Parked, Closed, 0)
			pass(40 * time.Second)
			w.unknown("a1")
		}, map[string]string{"a1": ""}},
		{"turned away", Config{}, func(w *world) { w.turn("a1", Detached, Refused, 0); w.unknown("a1") }, map[string]string{"a1": ""}},
		{"attached", Config{}, func(w *world) {
			w.condition("a1", DataPathReady, corev1.ConditionTrue)
			pass(40 * time.Second)
			w.unknown("a1")
		}, map[string]string{"a1": ""}},
		{"attached, and kept", Config{KeepAttached: true}, func(w *world) {
			w.condition("a1", DataPathReady, corev1.ConditionTrue)
			pass(40 * time.Second)
			w.unknown("a1")
		}, map[string]string{"a1": TunnelAttached}},
		{"attached, and kept for too long", Config{KeepAttached: true}, func(w *world) {
			w.condition("a1", DataPathReady, corev1.ConditionTrue)
			w.unknown("a1")
			pass(time.Hour)
		}, map[string]string{"a1": ""}},
		{"attached, and nothing answers", Config{KeepAttached: true}, func(w *world) {
			w.condition("a1", DataPathReady, corev1.ConditionFalse)
			w.unknown("a1")
		}, map[string]string{"a1": ""}},
		{"never had a session", Config{}, func(w *world) { w.unknown("foreign") }, map[string]string{"foreign": ""}},
		{"not ready by its own word", Config{}, func(w *world) {
			w.silence("a1", "a2", "a3")
			w.ready("a1", corev1.ConditionFalse)
		}, map[string]string{"a1": "", "a2": SiteLostNetwork}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tc.conf)
				for _, n := range []string{"a1", "a2", "a3", "b1", "b2", "c1"} {
					w.node(n, n[:1], true)
				}
				w.node("n1", "", true)
				w.node("n2", "", true)
				w.node("foreign", "a", false)
				pass(settled)
				tc.do(w)
				for node, want := range tc.want {
					if got := w.reason(node); got != want {
						t.Errorf("%s: excuse %q, want %q", node, got, want)
					}
				}
			})
		})
	}
}

func TestAutonomy(t *testing.T) {
	for _, tc := range []struct {
		name       string
		node, site string // annotations; site's is on another node of the site
		after      time.Duration
		want       string
	}{
		{"none", "", "", 0, ""},
		{"of the node", "10m", "", 9 * time.Minute, Autonomy},
		{"of the node, over", "10m", "", 10 * time.Minute, ""},
		{"of the site", "", "2h", time.Hour, Autonomy},
		{"of the site, over", "", "2h", 2 * time.Hour, ""},
		{"the node's goes first", "10m", "2h", time.Hour, ""},
		{"the node's goes first, longer", "3h", "2h", 150 * time.Minute, Autonomy},
		{"zero keeps nothing", "0s", "2h", 0, ""},
		{"malformed is none", "soon", "", 0, ""},
		{"malformed leaves the site's", "-5m", "2h", time.Hour, Autonomy},
		{"a year, and not over the bound", "8760h", "", DefaultMaxAutonomy - time.Minute, Autonomy},
		{"a year, over the bound", "8760h", "", DefaultMaxAutonomy, ""},
		{"all the time there is", "2562047h47m16s", "", DefaultMaxAutonomy, ""},
		{"all of the site's time", "", "2562047h47m16s", DefaultMaxAutonomy, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{})
				w.node("a1", "a", true)
				w.node("a2", "a", true)
				w.node("b1", "b", true)
				if tc.node != "" {
					w.annotate("a1", NodeAutonomy, tc.node)
				}
				if tc.site != "" {
					w.annotate("a2", SiteAutonomy, tc.site)
				}
				pass(settled)
				w.turn("a1", Parked, Closed, 0) // whatever the cause
				w.unknown("a1")
				pass(tc.after)
				if got := w.reason("a1"); got != tc.want {
					t.Errorf("excuse %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// The bound is a flag, and holds for the other flag and for annotations alike; who
// asks for more is told.
func TestMaxAutonomy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{SiteAutonomy: 100 * time.Hour, MaxAutonomy: 2 * time.Hour})
		w.node("a1", "a", true)
		w.annotate("a1", NodeAutonomy, "3h")
		pass(settled)
		w.turn("a1", Parked, Closed, 0)
		w.unknown("a1")
		pass(2*time.Hour - time.Minute)
		if got := w.reason("a1"); got != Autonomy {
			t.Errorf("before the bound: %q", got)
		}
		pass(time.Minute)
		if got := w.reason("a1"); got != "" || w.judge.cfg.SiteAutonomy != 2*time.Hour {
			t.Errorf("at the bound: %q, a site's is %v", got, w.judge.cfg.SiteAutonomy)
		}
		w.judge.scan()
		w.judge.scan()
		select {
		case got := <-w.events.Events:
			if !strings.HasPrefix(got, "Warning InvalidAutonomyDuration ") || !strings.Contains(got, "3h is more than --max-autonomy-duration") || len(w.events.Events) != 0 {
				t.Errorf("told %q, and %d more", got, len(w.events.Events))
			}
		default:
			t.Error("nobody is told")
		}
	})
}

// A zone is no site: a node says itself which zone it is in, and moves nobody by
// that. Three fall silent together in what they call one zone, while another lives.
func TestZoneIsNoSite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		for _, name := range []string{"victim", "stolen", "third"} {
			w.node(name, "", true).Labels[corev1.LabelTopologyZone] = "here"
		}
		w.node("other", "elsewhere", true)
		pass(settled)
		for _, name := range []string{"victim", "stolen", "third"} {
			w.turn(name, Parked, Silent, DefaultSilence)
			w.unknown(name)
		}
		pass(time.Second)
		if got := w.reason("victim"); got != "" {
			t.Errorf("excuse %q", got)
		}
	})
}

// The node's own annotation says as well for how long the loss of its site counts.
func TestAutonomyBoundsTheSite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		for _, n := range []string{"a1", "a2", "b1"} {
			w.node(n, n[:1], true)
		}
		w.annotate("a1", NodeAutonomy, "0s")
		pass(settled)
		w.silence("a1", "a2")
		if got := w.reason("a1"); got != "" {
			t.Errorf("a1: %q", got)
		}
		if got := w.reason("a2"); got != SiteLostNetwork {
			t.Errorf("a2: %q", got)
		}
	})
}

func TestJustStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.node("known", "a", false)
		w.condition("known", TunnelConnected, corev1.ConditionTrue) // from before the start
		w.node("foreign", "a", false)
		w.node("died", "a", true)
		w.turn("died", Detached, Closed, 0)
		for _, n := range []string{"known", "foreign", "died"} {
			w.unknown(n)
		}
		expect := func(when string, want map[string]string) {
			t.Helper()
			for n, r := range want {
				if got := w.reason(n); got != r {
					t.Errorf("%s: %s: excuse %q, want %q", when, n, got, r)
				}
			}
		}
		expect("at once", map[string]string{"known": ServerJustStarted, "foreign": "", "died": ""})
		pass(59 * time.Second)
		expect("late", map[string]string{"known": ServerJustStarted})
		pass(time.Second)
		expect("too late", map[string]string{"known": "", "foreign": "", "died": ""})
	})
}

// A process that was stopped knows so by its own ticks, and gives all a while.
func TestSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		for _, n := range []string{"here", "dead", "foreign"} {
			w.node(n, "a", n != "foreign")
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := w.judge.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		pass(settled)
		w.turn("dead", Detached, Closed, 0)
		pass(time.Minute)
		for _, n := range []string{"here", "dead", "foreign"} {
			w.unknown(n)
		}
		if got := w.reason("here"); got != "" {
			t.Errorf("before: %q", got)
		}
		w.judge.mu.Lock()
		w.judge.ticked = w.judge.ticked.Add(-30 * time.Second) // as if it had not run since
		w.judge.mu.Unlock()
		for n, want := range map[string]string{"here": ServerJustStarted, "dead": "", "foreign": ""} {
			if got := w.reason(n); got != want {
				t.Errorf("%s: %q, want %q", n, got, want)
			}
		}
		pass(time.Minute)
		if got := w.reason("here"); got != "" {
			t.Errorf("a minute later: %q", got)
		}
		cancel()
		wg.Wait()
	})
}

// No excuse but an explicit annotation's outlives a day and an hour, whatever has
// happened.
func TestNoExcuseIsForEver(t *testing.T) {
	for _, links := range []error{nil, errors.New("down")} {
		for i, states := range [][3]Cause{{Silent, Silent, Silent}, {Silent, Silent, Closed}, {Silent, Left, Silent}, {Silent, "", Silent}, {"", "", ""}} {
			t.Run(fmt.Sprintf("%v %d", links, i), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, Config{KeepAttached: true})
					w.links = links
					for k, c := range states {
						name := fmt.Sprintf("n%d", k)
						w.node(name, "a", true)
						w.condition(name, DataPathReady, corev1.ConditionTrue)
						if c != "" {
							w.turn(name, Parked, c, 20*time.Second)
						}
						w.unknown(name)
					}
					pass(DefaultServerBound + DefaultSiteAutonomy)
					for k := range states {
						if got := w.reason(fmt.Sprintf("n%d", k)); got != "" {
							t.Errorf("n%d is still excused: %s", k, got)
						}
					}
				})
			})
		}
	}
}

func TestMalformedAnnotationsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.node("a1", "a", false)
		w.annotate("a1", NodeAutonomy, "soon")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		go func() {
			pass(2 * time.Minute)
			w.annotate("a1", NodeAutonomy, "later")
		}()
		if err := w.judge.Run(ctx); err != nil {
			t.Error(err)
		}
		close(w.events.Events)
		var got []string
		for e := range w.events.Events {
			got = append(got, e)
		}
		if len(got) != 2 || !strings.HasPrefix(got[0], "Warning InvalidAutonomyDuration Annotation node.hawser.dev/autonomy-duration of node a1 is ignored: \"soon\"") ||
			!strings.Contains(got[1], "later") {
			t.Errorf("events: %q", got)
		}
	})
}

// TestSaysWhoFellSilent: nodes that had left before a site was cut did not fall silent with it.
func TestSaysWhoFellSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		for _, n := range []string{"a1", "a2", "a3", "a4", "a5", "b1"} {
			w.node(n, n[:1], true)
		}
		pass(settled)
		for _, n := range []string{"a3", "a4", "a5"} {
			w.turn(n, Detached, Left, 0)
		}
		pass(48 * time.Hour)
		w.silence("a1", "a2")
		if _, text, _, _ := w.judge.Excuse(w.get("a1")); !strings.HasPrefix(text, "all 2 connected nodes (of 5) of site a fell silent together") {
			t.Error(text)
		}
	})
}

// TestSaysWhoseTunnels: nodes on the server's machine are not counted with the others.
func TestSaysWhoseTunnels(t *testing.T) {
	for text, near := range map[string]int{
		"all 2 nodes with a tunnel fell silent together": 0, "all 2 nodes with a tunnel from other machines than the server's fell silent together": 3,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Config{})
			for i := range near {
				name := fmt.Sprint("near-", i)
				w.node(name, "", true)
				w.sessions[name].Changes[0].Addr = "127.0.0.1:1"
			}
			w.node("far-1", "", true)
			w.node("far-2", "", true)
			pass(settled)
			w.silence("far-1", "far-2")
			if reason, got, _, _ := w.judge.Excuse(w.get("far-1")); reason != ServerLostNetwork || !strings.HasPrefix(got, text) {
				t.Errorf("%s: %s, want %s", reason, got, text)
			}
		})
	}
}
