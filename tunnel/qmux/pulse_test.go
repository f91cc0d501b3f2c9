// The pulse by itself: when it asks, when it gives up, and what it learns.

package qmux

import (
	"testing"
	"time"
)

const second = time.Second

// A script of what a pulse sees and says, in the order of time.
func TestPulse(t *testing.T) {
	type step struct {
		at   time.Duration
		do   func(p *pulse, now time.Duration) // nil: tick
		ask  bool
		dead bool
		next time.Duration // zero: whatever
	}
	hear := func(p *pulse, now time.Duration) { p.hear(now) }
	pong := func(p *pulse, now time.Duration) { p.hear(now); p.answered(now) }
	owe := func(p *pulse, now time.Duration) { p.owe(now, true) }
	told := func(p *pulse, now time.Duration) { p.hear(now); p.asked(60*second, second/2) }
	for _, tc := range []struct {
		name    string
		dialing bool
		metered bool
		steps   []step
	}{
		{name: "dialing end asks twice", dialing: true, steps: []step{
			{at: 14 * second, ask: true, next: 16800 * time.Millisecond},
			{at: 16800 * time.Millisecond, ask: true, next: 19600 * time.Millisecond},
			{at: 19600 * time.Millisecond, dead: true},
		}},
		{name: "accepting end leaves it to the other, and asks once", steps: []step{
			{at: 14 * second, next: 16800 * time.Millisecond},
			{at: 16800 * time.Millisecond, ask: true, next: 19600 * time.Millisecond},
			{at: 19600 * time.Millisecond, dead: true},
		}},
		{name: "an answer starts it over", dialing: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 15 * second, do: pong},
			{at: 16800 * time.Millisecond, next: 29 * second},
			{at: 29 * second, ask: true},
		}},
		{name: "so does anything else", dialing: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 16 * second, do: hear},
			{at: 16800 * time.Millisecond, next: 30 * second},
		}},
		{name: "a long round trip makes patient", dialing: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 16500 * time.Millisecond, do: pong},
			{at: 16800 * time.Millisecond, next: 30500 * time.Millisecond},
			{at: 30500 * time.Millisecond, ask: true},
			{at: 33300 * time.Millisecond, ask: true, next: 40500 * time.Millisecond},
			{at: 40500 * time.Millisecond, dead: true},
		}},
		{name: "a process that was stopped asks first", dialing: true, steps: []step{
			{at: 44 * second, ask: true, next: 46800 * time.Millisecond},
			{at: 46800 * time.Millisecond, ask: true, next: 49600 * time.Millisecond},
			{at: 49600 * time.Millisecond, dead: true},
		}},
		{name: "even if it had asked already", dialing: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 300 * second, ask: true, next: 302800 * time.Millisecond},
		}},
		{name: "stopped at the accepting end", steps: []step{
			{at: 44 * second, next: 46800 * time.Millisecond},
			{at: 46800 * time.Millisecond, ask: true, next: 49600 * time.Millisecond},
			{at: 49600 * time.Millisecond, dead: true},
		}},
		{name: "metered, the silence doubles", dialing: true, metered: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 14 * second, do: pong},
			{at: 16800 * time.Millisecond, next: 28 * second},
			{at: 28 * second, next: 42 * second},
			{at: 42 * second, ask: true},
			{at: 42 * second, do: pong},
			{at: 98 * second, ask: true},
		}},
		{name: "but not while bytes are owed", dialing: true, metered: true, steps: []step{
			{at: 14 * second, ask: true},
			{at: 14 * second, do: pong},
			{at: 16800 * time.Millisecond, next: 28 * second},
			{at: 20 * second, do: owe},
			{at: 28 * second, next: 34 * second},
			{at: 34 * second, ask: true, next: 36800 * time.Millisecond},
			{at: 36800 * time.Millisecond, ask: true, next: 39600 * time.Millisecond},
			{at: 39600 * time.Millisecond, dead: true},
		}},
		{name: "the accepting end keeps to what it was told", steps: []step{
			{at: 10 * second, do: told},
			{at: 14 * second, next: 24 * second},
			{at: 24 * second, next: 72800 * time.Millisecond},
			{at: 72800 * time.Millisecond, ask: true, next: 75600 * time.Millisecond},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPulse(14*second, tc.metered, tc.dialing)
			p.take(0)
			for _, s := range tc.steps {
				if s.do != nil {
					s.do(&p, s.at)
					continue
				}
				b := p.tick(s.at, 0)
				if b.ask {
					p.asking(s.at)
				}
				if b.ask != s.ask || (b.dead > 0) != s.dead || (s.next != 0 && b.next != s.next) || (b.dead == 0 && b.next <= s.at) {
					t.Fatalf("at %v: %+v; want %+v", s.at, b, s)
				}
			}
		})
	}
}

// A path forgets after some silence: a metered link finds out once, and then
// stays below for a day.
func TestPulseLearns(t *testing.T) {
	for _, tc := range []struct {
		name         string
		bears        time.Duration
		interval     time.Duration // in the end
		lost, probes int           // in a day, at most
	}{
		{"forever", 1 << 60, 10 * time.Minute, 0, 151},
		{"five minutes", 5 * time.Minute, 224 * second, 2, 400},
		{"a minute", time.Minute, 56 * second, 2, 1600},
		{"hardly", 15 * second, 14 * second, 2, 6200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPulse(14*second, true, true)
			var now time.Duration
			var lost, probes int
			for p.take(now); now < 24*time.Hour; now = p.planned { // as the timer would have it
				silent := now - p.heard
				b := p.tick(now, 0)
				switch {
				case b.dead > 0:
					lost++
					p.lost(now)
					p.learn(now)
					p.take(now)
				case b.ask:
					probes++
					announced, _ := p.asking(now)
					if silent > tc.bears {
						continue
					}
					if p.hear(now); p.open > 0 {
						p.answered(now)
					}
					if p.interval != announced {
						t.Fatalf("announced %v, holds %v", announced, p.interval)
					}
				}
			}
			if p.interval != tc.interval || lost > tc.lost || probes > tc.probes {
				t.Errorf("interval %v, lost %d, asked %d times", p.interval, lost, probes)
			}
			p.forget()
			if p.interval != p.base || p.ceiling != 0 {
				t.Errorf("another path: %+v", p)
			}
		})
	}
}

// A network that was down teaches nothing.
func TestPulseOutage(t *testing.T) {
	p := newPulse(14*second, true, true)
	p.take(0)
	p.tick(14*second, 0)
	p.asking(14 * second)
	p.lost(14 * second)
	p.take(100 * second) // not learned
	p.learn(100 * second)
	if p.ceiling != 0 || p.interval != p.base {
		t.Errorf("%+v", p)
	}
}
