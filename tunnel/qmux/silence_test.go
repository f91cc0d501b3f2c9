// Silence: how soon a dead peer is found, and what a metered session learns.

package qmux

import (
	"cmp"
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
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
		"metered and quiet": {true, false, maxKeepalive + 20*time.Second},
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

// A middlebox that forgets quiet connections costs a metered session one or two of them;
// then it asks often enough.
func TestForgetfulPath(t *testing.T) {
	for name, tc := range map[string]struct {
		bears, interval time.Duration
		most            int // connections
	}{
		"forever":      {1 << 60, maxKeepalive, 1},
		"five minutes": {5 * time.Minute, 224 * time.Second, 2},
		"a minute":     {time.Minute, 56 * time.Second, 2},
		"hardly":       {15 * time.Second, 14 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(tunnel.Options{})
				n.wrap = func(c *memnet.Conn) net.Conn {
					return &forgetter{Conn: c, bears: tc.bears, timer: time.AfterFunc(tc.bears, func() { c.Stall(true) })}
				}
				d, a := n.pair(t, tunnel.Options{Link: tunnel.LinkOptions{Metered: true}})
				near, far := opened(t, d, a)
				time.Sleep(12 * time.Hour)
				if made := n.made(); made > tc.most || interval(d) != tc.interval || interval(a) != tc.interval {
					t.Errorf("%d connections, asks after %v and %v: %+v", made, interval(d), interval(a), d.Link())
				}
				goesOn(t, far, near)
				n.close(t, d, a)
			})
		})
	}
}

// A connection that was doubted in vain does not make the next loss take longer to find.
func TestFalseDoubtIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		slow := func(ctx context.Context) (secured, error) {
			n.mu.Lock()
			down := n.down
			n.mu.Unlock()
			if down != nil {
				return nil, cmp.Or(passes(ctx, 3*time.Second), down)
			}
			return n.dial(ctx)
		}
		d, a := n.pairBy(t, tunnel.Options{}, slow)
		near, far := opened(t, d, a)
		first := n.near[0]
		n.set(func() { n.down = errNoWay })
		first.Stall(true)
		says(t, near, "late")
		time.Sleep(2 * time.Second) // another one is being dialed
		first.Stall(false)
		hears(t, far, "late")
		time.Sleep(5 * time.Second)
		d.mu.Lock()
		doubts := d.paths.rejoin.falseDoubts
		d.mu.Unlock()
		if doubts == 0 || n.made() != 1 {
			t.Fatalf("%d connections: it was not doubted in vain", n.made())
		}
		n.set(func() { n.down = nil })
		time.Sleep(30 * time.Second)
		n.stall()
		if took := goesOn(t, near, far); took > minAckTimeout+100*time.Millisecond {
			t.Errorf("a loss was found after %v", took)
		}
		n.close(t, d, a)
	})
}

// While the network is down a connection that is silent is not taken for one that works after all:
// another is tried each second.
func TestDownNetworkIsTriedEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		n.set(func() { n.down = errNoWay })
		n.stall()
		says(t, near, "late")
		time.Sleep(8500 * time.Millisecond)
		n.set(func() { n.down = nil })
		began := time.Now()
		hears(t, far, "late")
		if took := time.Since(began); took > minAckTimeout+100*time.Millisecond {
			t.Errorf("it went on %v after the network", took)
		}
		n.close(t, d, a)
	})
}

// What attempts that have failed put off is not put off any more once the session was resumed.
func TestResumedSessionDoubtsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		d.mu.Lock()
		d.paths.rejoin.retryAt = time.Now().Add(maxAckTimeout)
		d.mu.Unlock()
		n.cut()
		goesOn(t, near, far)
		n.stall()
		if took := goesOn(t, near, far); took > minAckTimeout+100*time.Millisecond {
			t.Errorf("a loss was found after %v", took)
		}
		n.close(t, d, a)
	})
}

// A round trip that an outage has delayed is no measure of the path.
func TestUsualRTT(t *testing.T) {
	p := keepalive{base: tunnel.DefaultKeepalive}
	for i, step := range []struct{ rtt, usual time.Duration }{
		{time.Second, time.Second},
		{50 * time.Millisecond, 50 * time.Millisecond},
		{4050 * time.Millisecond, 550 * time.Millisecond},
		{50 * time.Millisecond, 50 * time.Millisecond},
		{130 * time.Millisecond, 60 * time.Millisecond},
	} {
		if p.measured(step.rtt); p.rtt != step.rtt || p.usualRTT != step.usual {
			t.Errorf("step %d: %v, usually %v", i, p.rtt, p.usualRTT)
		}
	}
	for range 40 {
		p.measured(2 * time.Second)
	}
	if p.usualRTT < 1900*time.Millisecond {
		t.Errorf("a path that has become slower: usually %v", p.usualRTT)
	}
}

// A network that was down teaches nothing.
func TestOutageTeachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{Link: tunnel.LinkOptions{Metered: true}})
		time.Sleep(time.Hour)
		n.set(func() { n.down = errNoWay })
		n.stall()
		for d.Link().Parked.IsZero() {
			time.Sleep(time.Second)
		}
		n.set(func() { n.down = nil })
		for !d.Link().Parked.IsZero() {
			time.Sleep(time.Second)
		}
		if got := interval(d); got != maxKeepalive {
			t.Errorf("asks after %v from now on", got)
		}
		n.close(t, d, a)
	})
}

// interval is how long s may be silent now.
func interval(s *Session) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keepalive.interval
}

// A process that was stopped does not blame the peer for the silence, even if it had
// asked already: it asks, and waits for the answer as long as ever.
func TestStoppedProcessAsksFirst(t *testing.T) {
	for name, asked := range map[string]bool{"in a silence": false, "after it had asked": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(tunnel.Options{})
				d, a := n.pair(t, tunnel.Options{})
				for _, s := range []*Session{d, a} {
					s.mu.Lock()
					c, pings := s.firstLocked(), s.pings
					for _, at := range []*time.Time{&s.timerAt, &c.lastReceived} {
						*at = at.Add(-time.Hour) // as if it had slept
					}
					if asked {
						c.probedAt = c.lastReceived.Add(s.keepalive.base)
					}
					s.mu.Unlock()
					s.tick()
					time.Sleep(time.Second)
					s.mu.Lock()
					if s.stats.Parks > 0 || s.pings != pings+1 {
						t.Errorf("asked %d times: %+v", s.pings-pings, s.stats)
					}
					s.mu.Unlock()
				}
				n.close(t, d, a)
			})
		})
	}
}

// slowPeer is the dialing end and its connection of a session whose peer's system works,
// and whose peer's process does nothing more until resume, or the end of the test.
func slowPeer(t *testing.T, o tunnel.Options) (d *Session, c *conn, resume func()) {
	t.Helper()
	o.TLS = tunneltest.TLS(t)
	addr, accepted := overTLS(t, o)
	d = dialed(t, addr, o)
	a := sessionOf(t, accepted)
	for _, s := range []*Session{d, a} {
		awaitReal(t, "the first pings are answered", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.pings > 0 && s.firstLocked().pingNumber == 0
		})
	}
	a.mu.Lock()
	d.mu.Lock()
	defer d.mu.Unlock()
	resume = sync.OnceFunc(a.mu.Unlock)
	t.Cleanup(resume)
	return d, d.firstLocked(), resume
}

// awaitReal waits in real time until check returns true.
func awaitReal(t *testing.T, what string, check func() bool) {
	t.Helper()
	for wait := waiting(t); !check(); {
		select {
		case <-wait.Done():
			t.Fatalf("still not: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// A peer whose system acknowledges what its process does not read, since it has too much to
// do, is pinged again, and keeps its connection until slowTimeout is over.
func TestSlowPeerKeepsItsConnection(t *testing.T) {
	d, c, _ := slowPeer(t, tunnel.Options{Link: tunnel.LinkOptions{Keepalive: maxKeepalive}})
	// silent has the silence and the latest ping be older by so much.
	silent := func(since time.Duration) {
		d.mu.Lock()
		c.lastReceived = c.lastReceived.Add(-since)
		if !c.probedAt.IsZero() {
			c.probedAt = c.probedAt.Add(-since)
		}
		d.timerAt = time.Time{}
		d.mu.Unlock()
		d.tick()
	}
	silent(d.keepalive.base)
	for range 3 {
		silent(d.keepalive.pongTimeout())
		if parks := d.Link().Parks; parks > 0 {
			t.Fatal("a slow peer lost its connection")
		}
	}
	silent(d.keepalive.slowTimeout())
	if parks := d.Link().Parks; parks != 1 {
		t.Errorf("%d parks after %v", parks, d.keepalive.slowTimeout())
	}
}

// Nor is such a peer dialed again because it owes an acknowledgement. It is pinged once
// TCP has nothing more to say, so that TCP has.
func TestSlowPeerIsNotDoubted(t *testing.T) {
	d, c, resume := slowPeer(t, tunnel.Options{})
	s, err := d.Open(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	says(t, s, "anybody")
	for range 2 {
		d.mu.Lock()
		pings := d.pings
		d.mu.Unlock()
		awaitReal(t, "TCP is silent, and a ping was sent", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.pings > pings || d.paths.rejoin.redialing
		})
		d.mu.Lock()
		if d.paths.rejoin.redialing || d.paths.rejoin.falseDoubts > 0 || c.owedSince.IsZero() || c.slowSince.IsZero() {
			t.Errorf("a slow peer is doubted: %+v", d.paths.rejoin)
		}
		d.mu.Unlock()
	}
	resume()
	awaitReal(t, "it answers", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return c.slowSince.IsZero() && c.inFlight == 0
	})
	if link := d.Link(); link.Resumes > 0 || link.Parks > 0 {
		t.Errorf("%+v", link)
	}
}

// A process that is late all the time, since it has too much to do, doubts a connection
// nevertheless.
func TestLateProcessDoubts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		synctest.Wait()
		n.mu.Lock() // no other connection is made before it was looked at
		d.mu.Lock()
		c := d.firstLocked()
		c.inFlight, c.owedSince = 1, time.Now()
		for late := 0; !d.paths.rejoin.redialing; late++ {
			if late == 2 {
				t.Error("a connection is not doubted while its timer is late")
				break
			}
			c.owedSince = c.owedSince.Add(-2*lateTick - d.ackTimeoutLocked())
			d.timerAt = time.Now().Add(-2 * lateTick)
			d.mu.Unlock()
			d.tick()
			d.mu.Lock()
		}
		c.inFlight = 0
		d.mu.Unlock()
		n.mu.Unlock()
		synctest.Wait()
		n.close(t, d, a)
	})
}

// A connection that does not take what is written to it is doubted although the peer owes
// nothing on it: what it was to carry may have come by one that was lost since, and the
// stream waits for it to be written.
func TestStuckWriterIsDoubted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		for _, heard := range []bool{true, false} {
			synctest.Wait()
			n.mu.Lock() // no other connection is made before it was looked at
			d.mu.Lock()
			c := d.firstLocked()
			ago := time.Now().Add(-2 * d.ackTimeoutLocked())
			c.writing, c.lastSent, c.lastReceived = true, ago, ago
			if heard {
				c.lastReceived = time.Now()
			}
			d.mu.Unlock()
			d.tick()
			d.mu.Lock()
			if doubted := d.paths.rejoin.redialing; doubted == heard {
				t.Errorf("heard of meanwhile %v: doubted %v", heard, doubted)
			}
			c.writing, c.owedSince = false, time.Time{}
			d.mu.Unlock()
			n.mu.Unlock()
		}
		synctest.Wait()
		n.close(t, d, a)
	})
}

// A forgetter is a connection that dies of too long a silence.
type forgetter struct {
	*memnet.Conn
	bears time.Duration
	timer *time.Timer
}

func (f *forgetter) Write(p []byte) (int, error) {
	f.timer.Reset(f.bears)
	return f.Conn.Write(p)
}
