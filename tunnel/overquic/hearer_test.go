package overquic

import (
	"net"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// What is suspected of not passing full packets: a path on which those go, no
// answer comes, and the peer is heard. Nothing else.
func TestHearerMeasures(t *testing.T) {
	for _, tc := range []struct {
		name  string
		every time.Duration // between two packets of a size that go out
		size  uint64
		heard time.Duration // between two of the peer's; 0: never
		// answers is between two answers; 0: never.
		answers time.Duration
		rtt     time.Duration
		least   time.Duration // until it is suspected; 0: never
	}{
		{name: "idle", every: 14 * time.Second, size: 30, heard: 14 * time.Second},
		{name: "upload", every: time.Millisecond, size: 30, heard: time.Millisecond},
		{name: "download", every: time.Millisecond, size: 1400, heard: 2 * time.Millisecond, answers: 2 * time.Millisecond},
		{name: "download over a path that loses nearly all", every: 100 * time.Millisecond, size: 1400, heard: time.Second, answers: 5 * time.Second},
		{name: "dead", every: 500 * time.Millisecond, size: 1400},
		{name: "narrow", every: 500 * time.Millisecond, size: 1400, heard: 14 * time.Second, least: 6 * time.Second},
		{name: "narrow and slow", every: 500 * time.Millisecond, size: 1400, heard: 5 * time.Second, rtt: 3 * time.Second, least: 12 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Unix(0, 0)
			h := &hearer{promise: tunnel.DefaultKeepalive, window: time.Hour}
			h.start(look{now: start})
			times := func(d, every time.Duration) uint64 {
				if every == 0 {
					return 0
				}
				return uint64(d / every)
			}
			for now := start; now.Before(start.Add(time.Hour)); {
				d := now.Sub(start)
				sent := times(d, tc.every)
				s := h.look(look{
					now: now, sent: sent, bytes: sent * tc.size, received: times(d, tc.heard),
					sample: time.Duration(times(d, tc.answers)), rtt: tc.rtt,
				})
				if s.mute {
					if tc.least == 0 || d < tc.least || d > tc.least+14*time.Second+4*time.Second {
						t.Errorf("suspected after %v", d)
					}
					return
				}
				if !s.next.After(now) {
					t.Fatalf("looks again at once after %v", d)
				}
				now = s.next
			}
			if tc.least != 0 {
				t.Error("never suspected")
			}
		})
	}
}

// The accepting end is parked while the peer says that it hears nothing, and for
// no longer than the window.
func TestHearerDeaf(t *testing.T) {
	now := time.Unix(0, 0)
	h := &hearer{promise: tunnel.DefaultKeepalive, window: time.Minute}
	h.start(look{now: now})
	received := uint64(0)
	see := func(d time.Duration) step {
		now = now.Add(d)
		received++
		return h.look(look{now: now, received: received})
	}
	h.deaf = now.Add(2 * time.Minute)
	if s := see(time.Second); !s.lost {
		t.Errorf("deaf: %+v", s)
	}
	if s := see(time.Second); s.back || s.lost || s.over {
		t.Errorf("still deaf: %+v", s)
	}
	h.deaf = time.Time{}
	if s := see(time.Second); s.back || s.next.After(now.Add(heed)) {
		t.Errorf("no longer deaf, as far as is known yet: %+v", s)
	}
	h.deaf = now.Add(2 * time.Minute)
	if s := see(heed); s.back || s.lost {
		t.Errorf("deaf all the same: %+v", s)
	}
	h.deaf = time.Time{}
	see(time.Second)
	if s := see(heed); !s.back {
		t.Errorf("no longer deaf: %+v", s)
	}
	h.deaf = now.Add(2 * time.Minute)
	for range 60 {
		if s := see(time.Second); s.over {
			t.Fatal("given up too early")
		}
	}
	if s := see(time.Second); !s.over {
		t.Errorf("a minute later: %+v", s)
	}
}

// The accepting end misses a peer after what it was promised and the time for
// its questions.
func TestHearer(t *testing.T) {
	start := time.Unix(0, 0)
	h := &hearer{promise: tunnel.DefaultKeepalive, window: time.Minute}
	h.start(look{now: start})
	received := uint64(0)
	var lost, back, over time.Time
	for now := start; now.Before(start.Add(10*time.Minute)) && over.IsZero(); {
		if since := now.Sub(start); since < time.Minute || since > 2*time.Minute && lost.IsZero() == false && back.IsZero() {
			received++
		}
		s := h.look(look{now: now, received: received})
		switch {
		case s.lost && lost.IsZero():
			lost = now
		case s.back:
			back = now
		case s.over:
			over = now
		}
		now = s.next
	}
	if d := lost.Sub(start); d < 75*time.Second || d > 81*time.Second {
		t.Errorf("lost after %v", d)
	}
	if d := back.Sub(start); d < 2*time.Minute || d > 2*time.Minute+2*time.Second {
		t.Errorf("back after %v", d)
	}
	if d := over.Sub(back); d < 80*time.Second || d > 83*time.Second {
		t.Errorf("over %v after it was last heard", d)
	}
}

// An address is muted until its time is over or somebody says so, and no other is;
// so are only so many.
func TestMutes(t *testing.T) {
	var m mutes
	addr := func(port int) *net.UDPAddr { return &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: port} }
	if m.has(addr(1)) || m.has(nil) {
		t.Error("muted from the first")
	}
	m.mute(addr(1), time.Now().Add(time.Hour))
	m.mute(addr(2), time.Now().Add(-time.Hour))
	mapped := &net.UDPAddr{IP: addr(1).IP.To16(), Port: 1}
	if !m.has(addr(1)) || !m.has(mapped) || m.has(addr(2)) || m.has(addr(3)) {
		t.Errorf("1: %t, 1 as IPv6: %t, 2, which is over: %t, 3, which never was: %t", m.has(addr(1)), m.has(mapped), m.has(addr(2)), m.has(addr(3)))
	}
	m.unmute(addr(1))
	if m.has(addr(1)) || m.any.Load() || len(m.until) != 0 {
		t.Error("muted for ever")
	}
	for port := range maxMuted + 1 {
		m.mute(addr(port), time.Now().Add(time.Hour))
	}
	if m.has(addr(maxMuted)) || !m.has(addr(maxMuted-1)) {
		t.Error("the bound is another")
	}
	m.mute(addr(1), time.Now().Add(-time.Hour))
	if m.has(addr(1)) {
		t.Error("what is muted already is not muted anew when there is no room for others")
	}
}
