// Silence: how soon a dead peer is found, and what a metered session learns.

package qmux

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A dead peer is found in time at both ends, whoever has something to say, and a metered
// session finds it as soon when it has.
func TestDetection(t *testing.T) {
	for name, tc := range map[string]struct {
		metered, busy bool
		most          time.Duration
	}{
		"quiet":             {false, false, 20 * time.Second},
		"busy":              {false, true, 20 * time.Second},
		"metered and quiet": {true, false, longestSilence + 20*time.Second},
		"metered and busy":  {true, true, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := tunnel.Options{Link: tunnel.LinkOptions{DetachWindow: time.Hour, Metered: tc.metered}}
				n := newNetwork(o)
				d, a := n.pair(t, o)
				near, far := opened(t, d, a)
				time.Sleep(2 * time.Hour)
				if d.Link().Parks > 0 || n.made() != 1 {
					t.Errorf("an idle session had %d connections", n.made())
				}
				n.set(func() { n.down = errNoWay })
				n.stall()
				began := time.Now()
				if tc.busy {
					says(t, near, "anybody")
					says(t, far, "there")
				}
				for _, s := range []*Session{d, a} {
					for s.Link().Parked.IsZero() && time.Since(began) < time.Hour {
						time.Sleep(100 * time.Millisecond)
					}
					if took := time.Since(began); took > tc.most+100*time.Millisecond {
						t.Errorf("found after %v", took)
					}
				}
				n.set(func() { n.down = nil })
				if tc.busy {
					hears(t, far, "anybody")
					hears(t, near, "there")
				}
				n.close(t, d, a)
			})
		})
	}
}

// Both ends know the round trip at once, and that of another path soon.
func TestRTT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		k := &cutter{cut: never}
		each := 40 * time.Millisecond
		n.slow(k, func() time.Duration { return each })
		d, a := n.pair(t, tunnel.Options{})
		for range 3 {
			time.Sleep(time.Second)
			for name, s := range map[string]*Session{"dialer": d, "accepter": a} {
				if rtt := s.Link().RTT; rtt < 2*each || rtt > 4*each {
					t.Errorf("%s: round trip %v with %v each way", name, rtt, each)
				}
			}
			n.set(func() { each *= 3 })
			if err := d.Move(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		n.close(t, d, a)
		k.carrying.Wait()
	})
}

// A middlebox that forgets quiet connections costs a metered session one of them; then
// it asks often enough.
func TestForgetfulPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		n.wrap = func(c *memnet.Conn) net.Conn {
			return &forgetter{Conn: c, timer: time.AfterFunc(time.Minute, func() { c.Stall(true) })}
		}
		d, a := n.pair(t, tunnel.Options{Link: tunnel.LinkOptions{Metered: true}})
		near, far := opened(t, d, a)
		time.Sleep(12 * time.Hour)
		if made := n.made(); made != 2 {
			t.Errorf("%d connections: %+v", made, d.Link())
		}
		goesOn(t, far, near)
		n.close(t, d, a)
	})
}

// A forgetter is a connection that dies of a minute's silence.
type forgetter struct {
	*memnet.Conn
	timer *time.Timer
}

func (f *forgetter) Write(p []byte) (int, error) {
	f.timer.Reset(time.Minute)
	return f.Conn.Write(p)
}
