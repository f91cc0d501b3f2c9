// Doubts about connections: when there are none, and what false ones cost.

package qmux

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A connection on which something is said now and then, and acknowledged in time, is
// not doubted, however long the pauses are: what is owed is owed since it was sent.
func TestNowAndThenIsNotDoubted(t *testing.T) {
	for _, pause := range []time.Duration{910 * time.Millisecond, time.Second, 1050 * time.Millisecond, 1930 * time.Millisecond, 3 * time.Second, 13 * time.Second} {
		for name, size := range map[string]int{"keystrokes": 1, "bulk": 100 << 10} {
			t.Run(pause.String()+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := tunnel.Options{Link: tunnel.LinkOptions{Connections: 1}}
					k := &cutter{cut: func(int) (bool, bool) { return false, false }, accepted: make(chan *Session, 1)}
					k.delays = []time.Duration{40 * time.Millisecond}
					k.registry = newRegistry(o, func(tunnel.Peer) (string, error) { return "node", nil })
					first, _ := k.dial(t.Context())
					d, err := dialOn(t.Context(), first, k.dial, o)
					if err != nil {
						t.Fatal(err)
					}
					a := <-k.accepted
					near, err := d.Open(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					far, err := a.Accept(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					said, heard := make([]byte, size), make([]byte, size)
					for range 50 {
						time.Sleep(pause) // the bubble's clock
						for _, way := range []struct{ from, to tunnel.Stream }{{near, far}, {far, near}} {
							go func() { _, _ = way.from.Write(said) }() // the reader notices
							if _, err := io.ReadFull(way.to, heard); err != nil {
								t.Fatal(err)
							}
						}
					}
					if k.made != 1 || d.Link().Resumes != 0 {
						t.Errorf("%d connections were made, one of which was wanted: %+v", k.made, d.Link())
					}
					_, _ = d.Close(), a.Close()
					k.carrying.Wait()
				})
			})
		}
	}
}

// slowly is a dialFunc that takes a time.
func (n *network) slowly(took time.Duration) dialFunc {
	return func(ctx context.Context) (secured, error) {
		c, err := n.dial(ctx)
		return c, cmp.Or(err, passes(ctx, took))
	}
}

// A connection that is silent for a little longer than doubt takes, and then answers, is not
// replaced, however often: what is in flight on it would be replayed each time.
func TestGapsReplaceNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pairBy(t, tunnel.Options{}, n.slowly(300*time.Millisecond))
		near, far := opened(t, d, a)
		first := n.near[0]
		for range 10 {
			first.Stall(true)
			says(t, near, "late")
			time.Sleep(minAckTimeout + 200*time.Millisecond) // another one is being dialed
			first.Stall(false)
			hears(t, far, "late")
			time.Sleep(10 * time.Second)
		}
		if l := d.Link(); l.Resumes != 0 || n.made() < 2 {
			t.Errorf("%d connections were made: %+v", n.made(), l)
		}
		first.Stall(true) // a loss is found as ever
		if took := goesOn(t, near, far); took > 3*time.Second {
			t.Errorf("a loss was found after %v", took)
		}
		n.close(t, d, a)
	})
}

// Connections beside the first that are silent now and then, as on a path that is too thin for
// them, are not made again at once, each time with what was in flight.
func TestThinPathIsNotFilledWithConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := tunnel.Options{Link: tunnel.LinkOptions{Connections: 4}}
		n := newNetwork(o)
		d, a := n.pairBy(t, o, n.slowly(2*time.Second))
		var group sync.WaitGroup
		for range 3 {
			near, far := opened(t, d, a)
			group.Go(func() { _, _ = io.Copy(io.Discard, far) })
			group.Go(func() { sendBulk(near, 200*time.Millisecond) })
		}
		near, far := opened(t, d, a)
		for range 24 { // five seconds each
			for tenth := range 50 {
				n.set(func() {
					for _, c := range n.near[1:] {
						c.Stall(tenth >= 35)
					}
				})
				says(t, near, "key")
				hears(t, far, "key")
				time.Sleep(100 * time.Millisecond)
			}
		}
		if l := d.Link(); n.made() > 20 || n.made() < 4 || l.Parks != 0 {
			t.Errorf("%d connections were made in two minutes: %+v", n.made(), l)
		}
		n.close(t, d, a)
		group.Wait()
	})
}

// A connection beside the first, whose TCP is acknowledged though nothing comes, is given up when
// the first one would be, at both ends, and its streams go on. A proxy may acknowledge that has lost
// the server.
func TestSlowConnectionBesideIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d, a, stop := adding(t, 3, func(d, a *Session) (from, to *Session) { return d, a })
		adds(t, n, d, 2*minGrowBackoff)
		time.Sleep(time.Second)                             // the bubble's clock
		n.set(func() { n.near[len(n.near)-1].Stall(true) }) // the end of c does not arrive
		d.mu.Lock()
		c, now := d.conns[len(d.conns)-1], time.Now()
		limit := d.keepalive.base + d.keepalive.slowTimeout()
		c.owedSince, c.slowSince = now, now.Add(-limit) // this process was stopped for that long
		d.timerAt = now.Add(-limit)
		d.mu.Unlock()
		d.tick()
		d.mu.Lock()
		if c.detached {
			t.Error("given up by a process that was stopped, before it has read anything")
		}
		c.owedSince, c.slowSince = now, now.Add(time.Millisecond-limit)
		d.checkLocked(c, now)
		early := c.detached
		d.checkLocked(c, now.Add(time.Millisecond))
		lost, doubts, number := c.detached, d.paths.besideDoubts, c.number
		d.mu.Unlock()
		if early || !lost || doubts == 0 {
			t.Errorf("given up early: %t, at all: %t, counted %d times", early, lost, doubts)
		}
		before := d.Link()
		time.Sleep(time.Minute) // the bubble's clock
		if after := d.Link(); after.Parks > before.Parks || after.Connections < 2 {
			t.Errorf("the session does not go on: %+v", after)
		}
		a.mu.Lock()
		if slices.ContainsFunc(a.conns, func(o *conn) bool { return o.number == number }) {
			t.Error("the peer has it still")
		}
		a.mu.Unlock()
		stop()
	})
}
