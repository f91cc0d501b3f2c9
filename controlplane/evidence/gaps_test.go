package evidence

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A silence that is over before the session has noticed it was one all the same,
// of the node and of its site.
func TestUnnoticedSilence(t *testing.T) {
	site := []string{"a1", "a2", "a3"}
	cut := func(w *world, names ...string) {
		for _, n := range names {
			w.hang(n)
		}
		pass(45 * time.Second)
		for _, n := range names {
			w.unknown(n)
		}
	}
	for _, tc := range []struct {
		name string
		do   func(w *world)
		want map[string]string
	}{
		{"one is back, and its heartbeat is not", func(w *world) {
			cut(w, site...)
			w.speak("a2")
			pass(time.Second)
		}, map[string]string{"a1": SiteLostNetwork, "a2": SiteLostNetwork, "a3": SiteLostNetwork}},
		{"one is back, and has gone again", func(w *world) {
			cut(w, site...)
			w.speak("a2")
			pass(8 * time.Second)
			w.turn("a2", Parked, Closed, 0)
			pass(8 * time.Second)
		}, map[string]string{"a1": SiteLostNetwork, "a2": "", "a3": SiteLostNetwork}},
		{"one was back between two looks", func(w *world) {
			cut(w, site...)
			w.speak("a2")
			w.turn("a2", Parked, Failed, 0)
			pass(8 * time.Second)
		}, map[string]string{"a1": SiteLostNetwork, "a2": "", "a3": SiteLostNetwork}},
		{"one is back for long", func(w *world) {
			cut(w, site...)
			w.speak("a2")
			pass(67 * time.Second)
		}, map[string]string{"a1": "", "a3": ""}},
		{"one was silent alone", func(w *world) {
			cut(w, "a1")
			w.speak("a1")
			pass(time.Second)
		}, map[string]string{"a1": ""}},
		{"they were silent one after another", func(w *world) {
			for _, n := range site {
				cut(w, n)
				w.speak(n)
				pass(time.Minute)
			}
			cut(w, "a1")
		}, map[string]string{"a1": ""}},
		{"for the second time", func(w *world) {
			for range 2 * maxGaps {
				cut(w, site...)
				for _, n := range site {
					w.speak(n)
				}
				pass(2 * time.Minute)
			}
			cut(w, site...)
			w.speak("a3")
			pass(time.Second)
		}, map[string]string{"a1": SiteLostNetwork, "a2": SiteLostNetwork, "a3": SiteLostNetwork}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{})
				for _, n := range append([]string{"b1"}, site...) {
					w.node(n, n[:1], true)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { _ = w.judge.Run(ctx) })
				pass(settled)
				tc.do(w)
				for node, want := range tc.want {
					if got := w.reason(node); got != want {
						t.Errorf("%s: excuse %q, want %q", node, got, want)
					}
				}
				for node, s := range w.judge.records {
					if len(s.gaps) > maxGaps {
						t.Errorf("%s: %d silences are remembered", node, len(s.gaps))
					}
				}
				cancel()
				running.Wait()
			})
		})
	}
}

// What is remembered of a node goes with the node.
func TestSightingsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		a := w.node("a1", "a", true)
		w.node("a2", "a", true)
		w.reason("a1")
		if err := w.nodes.Delete(a); err != nil {
			t.Fatal(err)
		}
		pass(viewAge)
		w.reason("a2")
		if n := len(w.judge.records); n != 1 {
			t.Errorf("%d nodes are remembered, of which one is left", n)
		}
	})
}
