package overquic

import (
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A wire is a path in a world without clocks: a question is answered after a
// round trip, unless the path is dead or forgets whoever is silent for too long.
type wire struct {
	now            time.Time
	sent, received uint64
	sample         time.Duration
	dead           bool
	bears          time.Duration // silence; 0: any
	quiet          time.Time     // since when
	asks, kicks    int
	sockets        int
	// checks has the peer ask back where it does not know the address, instead of
	// answering; asking says that it has yet to be answered.
	checks, asking bool
}

// run has a look at the times that a asks for until end or until f says so, and
// returns when that was.
func (w *wire) run(a *asker, end time.Time, f func(step) bool) time.Time {
	for next := w.now; !next.After(end); {
		w.now = next
		s := a.look(look{now: w.now, sent: w.sent, received: w.received, rtt: 50 * time.Millisecond, sample: w.sample})
		if w.bears > 0 && w.now.Sub(w.quiet) > w.bears && (s.ask || s.kick) {
			w.dead = true
		}
		if s.fresh {
			w.dead, w.sockets = w.dead && w.bears == 0, w.sockets+1
		}
		if s.kick {
			w.kicks++
		}
		if s.ask {
			w.asks++
		}
		if s.ask || s.kick {
			w.sent++
			w.asking = w.checks && (w.asking || s.fresh)
			switch {
			case w.dead:
			case w.asking:
				w.received, w.asking = w.received+1, false
			default:
				w.received, w.sample, w.quiet = w.received+1, w.sample+1, w.now
			}
		}
		if f != nil && f(s) {
			return w.now
		}
		next = s.next
	}
	return end
}

func newWire(a *asker) *wire {
	start := time.Unix(0, 0)
	a.start(look{now: start})
	a.random = func() float64 { return 1 }
	return &wire{now: start, quiet: start}
}

// A quiet path is asked every 14 s, and no more than once.
func TestAskerIdle(t *testing.T) {
	a := newAsker(tunnel.DefaultKeepalive, false, time.Minute)
	w := newWire(a)
	w.run(a, w.now.Add(time.Hour), nil)
	if w.asks < 240 || w.asks > 257 {
		t.Errorf("%d questions in an idle hour", w.asks)
	}
	if w.kicks != 0 {
		t.Errorf("%d tries on a path that works", w.kicks)
	}
}

// A server that asks back where it does not know the address gets its answer at
// once, however long the path has been dead and tries are apart.
func TestAskerIsAskedBack(t *testing.T) {
	a := newAsker(tunnel.DefaultKeepalive, false, time.Hour)
	w := newWire(a)
	w.dead, w.checks = true, true
	w.run(a, w.now.Add(10*time.Minute), nil)
	w.dead = false
	healed := w.now
	back := w.run(a, w.now.Add(time.Hour), func(s step) bool { return s.back })
	if d := back.Sub(healed); d > slowest+time.Second {
		t.Errorf("back after %v", d)
	}
}

// A quiet path that dies is found to be dead within 20 s, tried ever again, and
// given up when the window is over.
func TestAskerDead(t *testing.T) {
	a := newAsker(tunnel.DefaultKeepalive, false, time.Minute)
	w := newWire(a)
	w.run(a, w.now.Add(time.Minute), nil)
	w.dead = true
	died := w.quiet
	lost := w.run(a, w.now.Add(time.Hour), func(s step) bool { return s.lost })
	if d := lost.Sub(died); d > 20*time.Second+time.Second {
		t.Errorf("noticed after %v", d)
	}
	over := w.run(a, w.now.Add(time.Hour), func(s step) bool { return s.over })
	if d := over.Sub(lost); d < time.Minute || d > time.Minute+2*time.Second {
		t.Errorf("given up after %v", d)
	}
	if w.kicks < 12 || w.kicks > 30 || w.sockets < 7 || w.sockets > 10 {
		t.Errorf("%d tries with %d sockets", w.kicks, w.sockets)
	}
}

// A path that is used and dies is found to be dead sooner, and one that comes
// back is told.
func TestAskerBusy(t *testing.T) {
	for _, tc := range []struct {
		name string
		use  func(w *wire)
	}{
		{"sending", func(w *wire) { w.sent++ }},
		{"receiving", func(w *wire) { w.received += burst; w.sent++ }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newAsker(tunnel.DefaultKeepalive, false, time.Minute)
			w := newWire(a)
			end := w.now.Add(20 * time.Second)
			for w.now.Before(end) {
				tc.use(w)
				w.received++
				w.sample++
				s := a.look(look{now: w.now, sent: w.sent, received: w.received, sample: w.sample})
				w.now = s.next
			}
			died := w.now
			w.dead = true
			if tc.name == "sending" {
				w.sent++
			}
			lost := w.run(a, w.now.Add(time.Hour), func(s step) bool { return s.lost })
			if d := lost.Sub(died); d > 9*time.Second {
				t.Errorf("noticed after %v", d)
			}
			w.dead = false
			back := w.run(a, w.now.Add(time.Hour), func(s step) bool { return s.back })
			if d := back.Sub(lost); d > 2*time.Second {
				t.Errorf("noticed that it works again after %v", d)
			}
		})
	}
}

// A path on which packets come but none goes is as dead as another.
func TestAskerHalfDead(t *testing.T) {
	a := newAsker(tunnel.DefaultKeepalive, false, time.Minute)
	w := newWire(a)
	w.dead = true
	lost := w.run(a, w.now.Add(time.Hour), func(s step) bool {
		w.received++ // the server sends again what is not acknowledged
		return s.lost
	})
	if d := lost.Sub(w.quiet); d > 20*time.Second+time.Second {
		t.Errorf("noticed after %v", d)
	}
}

// A path that becomes slow all of a sudden is in use again within the window,
// though each try to get through puts an end to the wait for earlier answers.
func TestAskerSuddenlySlow(t *testing.T) {
	for _, rtt := range []time.Duration{time.Second, 3 * time.Second, 6 * time.Second} {
		t.Run(rtt.String(), func(t *testing.T) {
			a := newAsker(tunnel.DefaultKeepalive, false, time.Minute)
			w := newWire(a)
			var answer time.Time
			for began := w.now; ; {
				if !answer.IsZero() && !w.now.Before(answer) {
					w.received, w.sample, answer = w.received+1, w.sample+1, time.Time{}
				}
				s := a.look(look{now: w.now, sent: w.sent, received: w.received, rtt: 50 * time.Millisecond, sample: w.sample})
				switch {
				case w.sample > 0 && a.parked.IsZero() && a.asked.IsZero():
					if d := w.now.Sub(began); d > time.Minute {
						t.Errorf("in use again after %v", d)
					}
					return
				case s.over:
					t.Fatalf("given up after %v", w.now.Sub(began))
				case s.kick, s.ask && answer.IsZero():
					w.sent, answer = w.sent+1, w.now.Add(rtt)
				}
				w.now = s.next
			}
		})
	}
}

// A path that has been dead for however long is tried each second, and one that
// counts what it carries is not.
func TestAskerKnocks(t *testing.T) {
	for _, metered := range []bool{false, true} {
		a := newAsker(tunnel.DefaultKeepalive, metered, time.Hour)
		w := newWire(a)
		w.dead = true
		var last time.Time
		var most time.Duration
		w.run(a, w.now.Add(10*time.Minute), func(s step) bool {
			if s.kick || s.knock {
				if !last.IsZero() {
					most = max(most, w.now.Sub(last))
				}
				last = w.now
			}
			return false
		})
		if metered != (most > time.Second) || most > slowest+time.Second {
			t.Errorf("metered %v: up to %v between two tries", metered, most)
		}
	}
}

// A path that has become slow stays in use once it is known to be slow, though a
// knock's answer cannot be told from one that was long on its way.
func TestAskerStaysSlow(t *testing.T) {
	for _, rtt := range []time.Duration{time.Second, 3 * time.Second, 6 * time.Second} {
		t.Run(rtt.String(), func(t *testing.T) {
			a := newAsker(tunnel.DefaultKeepalive, false, time.Minute)
			w := newWire(a)
			type question struct{ asked, answer time.Time }
			var (
				way   []question
				known = 50 * time.Millisecond
				lost  time.Time
			)
			began := w.now
			for end := w.now.Add(20 * time.Minute); w.now.Before(end); {
				for len(way) > 0 && !w.now.Before(way[0].answer) {
					w.received, w.sample = w.received+1, w.sample+1
					known = way[0].answer.Sub(way[0].asked)
					way = way[1:]
				}
				s := a.look(look{now: w.now, sent: w.sent, received: w.received, rtt: known, sample: w.sample})
				if s.kick { // what is on its way is forgotten
					way, known = nil, unsampled
				}
				if s.kick || s.ask {
					w.sent++
					way = append(way, question{w.now, w.now.Add(rtt)})
				}
				if s.over {
					t.Fatal("given up")
				}
				if s.lost {
					lost = w.now
				}
				w.now = s.next
			}
			if lost.Sub(began) > time.Minute {
				t.Errorf("still lost after %v", lost.Sub(began))
			}
		})
	}
}

// A slow path is given time.
func TestAskerSlow(t *testing.T) {
	a := newAsker(tunnel.DefaultKeepalive, false, time.Minute)
	w := newWire(a)
	rtt := 3 * time.Second
	var answer time.Time
	var sample time.Duration
	for end := w.now.Add(10 * time.Minute); w.now.Before(end); {
		if !answer.IsZero() && !w.now.Before(answer) {
			w.received, sample, answer = w.received+1, sample+1, time.Time{}
		}
		s := a.look(look{now: w.now, sent: w.sent, received: w.received, rtt: rtt, sample: sample})
		if s.lost || s.kick {
			t.Fatalf("gave up a path with a round trip of %v", rtt)
		}
		if s.ask {
			w.sent, answer = w.sent+1, w.now.Add(rtt)
		}
		w.now = s.next
	}
}

// A metered session asks ever less often, and never less often than the path
// bears.
func TestAskerMetered(t *testing.T) {
	day := 24 * time.Hour
	t.Run("patient path", func(t *testing.T) {
		a := newAsker(tunnel.DefaultKeepalive, true, time.Minute)
		w := newWire(a)
		w.run(a, w.now.Add(day), nil)
		if w.asks > 160 || a.interval != maxInterval {
			t.Errorf("%d questions a day, every %v at last", w.asks, a.interval)
		}
	})
	t.Run("path that forgets", func(t *testing.T) {
		a := newAsker(tunnel.DefaultKeepalive, true, time.Minute)
		w := newWire(a)
		w.bears = 2 * time.Minute
		w.run(a, w.now.Add(time.Hour), nil)
		if a.interval > w.bears || a.interval < tunnel.DefaultKeepalive {
			t.Errorf("asks every %v where silence is borne for %v", a.interval, w.bears)
		}
		sockets := w.sockets
		w.run(a, w.now.Add(day), nil)
		if w.sockets != sockets {
			t.Errorf("the path was lost another %d times", w.sockets-sockets)
		}
	})
	t.Run("promise", func(t *testing.T) {
		// What the peer has been promised before a silence covers the silence.
		a := newAsker(tunnel.DefaultKeepalive, true, time.Minute)
		w := newWire(a)
		promised, last := a.promise(), w.now
		w.run(a, w.now.Add(day), func(s step) bool {
			if s.ask {
				if d := w.now.Sub(last); d > promised+time.Second {
					t.Fatalf("silent for %v after promising %v", d, promised)
				}
				promised, last = a.promise(), w.now
			}
			return false
		})
	})
}

// A process that was stopped does not blame the path.
func TestLateLooks(t *testing.T) {
	start := time.Unix(0, 0)
	a := newAsker(tunnel.DefaultKeepalive, false, time.Minute)
	a.start(look{now: start})
	s := a.look(look{now: start.Add(10 * time.Minute)})
	if s.lost || s.over || s.kick {
		t.Errorf("dialing end: %+v", s)
	}
	h := &hearer{promise: tunnel.DefaultKeepalive, window: time.Minute}
	h.start(look{now: start})
	if s := h.look(look{now: start.Add(10 * time.Minute)}); s.lost || s.over {
		t.Errorf("accepting end: %+v", s)
	}
}
