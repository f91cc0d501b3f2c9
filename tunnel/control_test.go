package tunnel

import (
	"errors"
	"testing"
	"time"
)

// The pulse without a clock: a script of moments and what happens at them.
func TestPulse(t *testing.T) {
	type step struct {
		at    int    // seconds
		heard bool   // the peer says something first
		ping  uint64 // number of the ping that is sent; 0 none
		next  int    // when to come back; -1: the peer is dead
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"pings at once and each interval", []step{{0, false, 1, 10}, {10, true, 2, 20}, {20, true, 3, 30}}},
		{"what the peer says does not bring the ping forward", []step{{0, false, 1, 10}, {4, true, 0, 10}, {10, false, 2, 20}}},
		{"silence kills", []step{{0, false, 1, 10}, {10, false, 2, 20}, {20, false, 3, 30}, {30, false, 0, -1}}},
		{"a word in time saves", []step{{0, false, 1, 10}, {10, false, 2, 20}, {20, false, 3, 30}, {29, true, 0, 30}, {30, false, 4, 40}}},
		{"death comes between pings", []step{{0, false, 1, 10}, {5, true, 0, 10}, {10, false, 2, 20}, {20, false, 3, 30}, {30, false, 4, 35}, {35, false, 0, -1}}},
		{"a process that was stopped does not blame the peer", []step{{0, false, 1, 10}, {10, true, 2, 20}, {620, false, 3, 630}, {630, true, 4, 640}}},
		{"but does in the end", []step{{0, false, 1, 10}, {10, true, 2, 20}, {620, false, 3, 630}, {630, false, 4, 640}, {640, false, 0, -1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			zero := time.Unix(1000, 0)
			p := pulse{interval: 10 * time.Second, timeout: 30 * time.Second}
			p.start(zero)
			for i, s := range tc.steps {
				now := zero.Add(time.Duration(s.at) * time.Second)
				if s.heard {
					p.heard(now)
				}
				ping, next, err := p.tick(now)
				switch {
				case s.next < 0:
					if !errors.Is(err, Dead) {
						t.Errorf("step %d: %v, want death", i, err)
					}
					return
				case err != nil:
					t.Fatalf("step %d: %v", i, err)
				case (ping == nil) != (s.ping == 0) || ping != nil && ping.number != s.ping:
					t.Errorf("step %d: ping %v, want %d", i, ping, s.ping)
				case next.Sub(zero) != time.Duration(s.next)*time.Second:
					t.Errorf("step %d: next after %v, want %d s", i, next.Sub(zero), s.next)
				}
			}
		})
	}
}

func TestPong(t *testing.T) {
	now := time.Unix(1000, 0)
	p := pulse{interval: 10 * time.Second, timeout: 30 * time.Second}
	p.start(now)
	if _, ok := p.pong(now, 0); ok {
		t.Error("a pong before any ping counts")
	}
	if _, _, err := p.tick(now); err != nil {
		t.Fatal(err)
	}
	if rtt, ok := p.pong(now.Add(42*time.Millisecond), 1); !ok || rtt != 42*time.Millisecond {
		t.Errorf("rtt %v, %v", rtt, ok)
	}
	if _, _, err := p.tick(now.Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, ok := p.pong(now.Add(11*time.Second), 1); ok {
		t.Error("a pong of an older ping counts")
	}
}

func TestWelcomeTimes(t *testing.T) {
	for _, tc := range []struct{ in, want Welcome }{
		{Welcome{}, Welcome{Interval: DefaultInterval, Timeout: DefaultTimeout}},
		{Welcome{Interval: time.Second, Timeout: 3 * time.Second}, Welcome{Interval: time.Second, Timeout: 3 * time.Second}},
		{Welcome{Interval: time.Minute, Timeout: time.Second}, Welcome{Interval: time.Minute, Timeout: 2 * time.Minute}},
		{Welcome{Interval: 1, Timeout: 1}, Welcome{Interval: 100 * time.Millisecond, Timeout: 200 * time.Millisecond}},
		{Welcome{Interval: 1000 * time.Hour, Timeout: 1000 * time.Hour}, Welcome{Interval: time.Hour, Timeout: 24 * time.Hour}},
	} {
		if got := tc.in.withDefaults(); got.Interval != tc.want.Interval || got.Timeout != tc.want.Timeout {
			t.Errorf("%+v became %+v", tc.in, got)
		}
	}
}
