// Paths that change under an attempt, that are slow, and that work one way only.

package qmux

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http/httptrace"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// passes waits, unless ctx is done before.
func passes(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// goesOn checks that something gets through, and says after what time.
func goesOn(t *testing.T, near, far tunnel.Stream) time.Duration {
	t.Helper()
	began := time.Now()
	says(t, near, "on we go")
	hears(t, far, "on we go")
	return time.Since(began)
}

// A dial that hangs does not hold the session up: another is made beside it within a
// second, and that is what counts.
func TestHangingDialIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		var hanging, dials atomic.Int32
		d, a := n.pairBy(t, tunnel.Options{}, func(ctx context.Context) (secured, error) {
			dials.Add(1)
			if hanging.Add(-1) >= 0 {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return n.dial(ctx)
		})
		near, far := opened(t, d, a)
		hanging.Store(3)
		dials.Store(0)
		n.cut()
		if took := goesOn(t, near, far); took != 3*hedgeDelay {
			t.Errorf("three hanging dials held the session up for %v", took)
		}
		if k := dials.Load(); k != 4 {
			t.Errorf("%d dials", k)
		}
		n.close(t, d, a)
	})
}

// A server that is there and slow, since thousands came to it at once, is not dialed each
// second by each of them.
func TestSlowServerIsHedgedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		var slow atomic.Bool
		var dials atomic.Int32
		d, a := n.pairBy(t, tunnel.Options{}, func(ctx context.Context) (secured, error) {
			if slow.Load() {
				dials.Add(1)
				httptrace.ContextClientTrace(ctx).ConnectDone("tcp", "hub:1", nil)
				if err := passes(ctx, 10*time.Second); err != nil {
					return nil, err
				}
			}
			return n.dial(ctx)
		})
		near, far := opened(t, d, a)
		slow.Store(true)
		n.cut()
		goesOn(t, near, far)
		if k := dials.Load(); k != 4 { // after 0, 1, 3 and 7 s
			t.Errorf("%d dials in 10 s", k)
		}
		n.close(t, d, a)
	})
}

// A path that was dead for long is used within a second of its working again, though TCP
// asks for a connection ever more seldom, and a name server that does not answer has to
// be given up first.
func TestDeadPathIsTriedEachSecond(t *testing.T) {
	for _, resolving := range []time.Duration{0, 2500 * time.Millisecond} {
		for _, dead := range []time.Duration{
			9500 * time.Millisecond, 11100 * time.Millisecond, 13500 * time.Millisecond, 22 * time.Second, 29300 * time.Millisecond, 47700 * time.Millisecond,
		} {
			t.Run(fmt.Sprint(resolving, "/", dead), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testDeadPath(t, resolving, dead) })
			})
		}
	}
}

func testDeadPath(t *testing.T, resolving, dead time.Duration) {
	n := newNetwork(tunnel.Options{})
	var works time.Time // when the path does again
	var under, most atomic.Int32
	d, a := n.pairBy(t, tunnel.Options{}, func(ctx context.Context) (secured, error) {
		if k := under.Add(1); k > most.Load() {
			most.Store(k)
		}
		defer under.Add(-1)
		if trace := httptrace.ContextClientTrace(ctx); resolving > 0 && trace != nil {
			trace.ConnectDone("udp", "192.0.2.53:53", nil) // a name server: no packet has been sent
		}
		if err := passes(ctx, resolving); err != nil {
			return nil, err
		}
		for pause := time.Second; time.Now().Before(works); pause *= 2 { // RFC 6298
			if err := passes(ctx, pause); err != nil {
				return nil, err
			}
		}
		return n.dial(ctx)
	})
	near, far := opened(t, d, a)
	works = time.Now().Add(dead)
	n.cut()
	goesOn(t, near, far)
	if late := time.Since(works); late > time.Second {
		t.Errorf("the session went on %v after the path worked again", late)
	}
	if k := most.Load(); k > 1+2*maxHedges+1 { // one of them on its way out
		t.Errorf("%d connections were tried at a time", k)
	}
	n.close(t, d, a)
}

// So is one of which the system said at once that there was none.
func TestNoRouteIsTriedEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		for range 20 {
			n.set(func() { n.down = os.NewSyscallError("connect", syscall.ENETUNREACH) })
			n.cut()
			time.Sleep(30 * time.Second)
			n.set(func() { n.down = nil })
			if late := goesOn(t, near, far); late > time.Second {
				t.Errorf("the session went on %v after there was a way again", late)
			}
		}
		n.close(t, d, a)
	})
}

// A connection on which nothing is answered once it is there does not hold a session up
// for long either.
func TestSilentJoiningIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		silent := 1
		n.set(func() {
			n.wrap = func(c *memnet.Conn) net.Conn {
				c.Stall(silent > 0)
				silent--
				return c
			}
		})
		n.cut()
		if took := goesOn(t, near, far); took < joinTimeout || took > joinTimeout+minBackoff {
			t.Errorf("one silent connection held the session up for %v", took)
		}
		n.close(t, d, a)
	})
}

// slow has each way of a network's further connections take so long. The cutter carries
// what is on its way.
func (n *network) slow(k *cutter, each func() time.Duration) {
	n.set(func() {
		n.wrap = func(c *memnet.Conn) net.Conn { return newFragile(k, c, c, each()) }
		n.far = func(c *memnet.Conn) secured { return bare{newBatch(newFragile(k, c, c, each()))} }
	})
}

// A session goes on on a path on which a round trip takes three seconds: connections take
// long to come about there, and so do answers.
func TestSlowPathGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = 3 * time.Second
		n := newNetwork(tunnel.Options{})
		k := &cutter{cut: never}
		n.slow(k, func() time.Duration { return trip / 2 })
		var dials atomic.Int32
		d, a := n.pairBy(t, tunnel.Options{}, func(ctx context.Context) (secured, error) {
			dials.Add(1)
			for range 2 { // TCP and TLS
				if err := passes(ctx, trip); err != nil {
					return nil, err
				}
				if trace := httptrace.ContextClientTrace(ctx); trace != nil {
					trace.ConnectDone("tcp", "server", nil)
				}
			}
			return n.dial(ctx)
		})
		near, far := opened(t, d, a)
		time.Sleep(time.Minute)
		dials.Store(0)
		n.cut()
		if took := goesOn(t, near, far); took < 3*trip || took > 4*trip {
			t.Errorf("it took %v, want three round trips and half of one", took)
		}
		if k := dials.Load(); k > 6 {
			t.Errorf("%d dials", k)
		}
		n.close(t, d, a)
		k.carrying.Wait()
	})
}

// Nothing on such a path is taken for dead, from the first byte on: asking for the session
// has told how long the way is.
func TestSlowPathIsNotDoubted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = 3 * time.Second
		n := newNetwork(tunnel.Options{})
		k := &cutter{cut: never}
		n.slow(k, func() time.Duration { return trip / 2 })
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		for range 20 {
			goesOn(t, near, far)
			goesOn(t, far, near)
			time.Sleep(10 * time.Second)
		}
		if made := n.made(); made != 1 || d.Link().Parks+a.Link().Parks > 0 {
			t.Errorf("%d connections: %+v", made, d.Link())
		}
		n.close(t, d, a)
		k.carrying.Wait()
	})
}

// A halfDead connection swallows, while its switch is on, whatever comes in or whatever
// goes out.
type halfDead struct {
	*memnet.Conn
	in, out *atomic.Bool
}

func (c halfDead) Read(p []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(p); err != nil || !c.in.Load() {
			return n, err
		}
	}
}

func (c halfDead) Write(p []byte) (int, error) {
	if c.out.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Where one direction of a connection has died, that is found out at either end, whoever
// has something to say.
func TestOneWayIsDead(t *testing.T) {
	for _, way := range []string{"to the dialing end", "to the accepting end"} {
		for name, tc := range map[string]struct {
			speaks bool          // the dialing end does, or else the other
			quiet  bool          // nobody does
			most   time.Duration // until the session goes on
		}{
			"quiet":           {quiet: true, most: 20 * time.Second},
			"dialer speaks":   {speaks: true, most: 3 * time.Second},
			"accepter speaks": {most: 20 * time.Second},
		} {
			t.Run(way+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(tunnel.Options{})
					var in, out atomic.Bool
					n.wrap = func(c *memnet.Conn) net.Conn { return halfDead{c, &in, &out} }
					d, a := n.pair(t, tunnel.Options{})
					near, far := opened(t, d, a)
					n.set(func() { n.wrap = nil })
					time.Sleep(time.Minute)
					if way == "to the dialing end" {
						in.Store(true)
					} else {
						out.Store(true)
					}
					began := time.Now()
					switch {
					case tc.quiet:
						for d.Link().Resumes == 0 && time.Since(began) < time.Minute {
							time.Sleep(100 * time.Millisecond)
						}
					case tc.speaks:
						goesOn(t, near, far)
						goesOn(t, far, near)
					default:
						goesOn(t, far, near)
						goesOn(t, near, far)
					}
					if took := time.Since(began); took > tc.most+100*time.Millisecond {
						t.Errorf("it took %v, want %v", took, tc.most)
					}
					n.close(t, d, a)
				})
			})
		}
	}
}

// A window that is raised on a dead connection is missed, although nothing is in flight on
// it: the sender waits for it with data to send.
func TestLostCreditIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := tunnel.Options{Link: tunnel.LinkOptions{Connections: 1}}
		n := newNetwork(o)
		var in, out atomic.Bool
		n.wrap = func(c *memnet.Conn) net.Conn { return halfDead{c, &in, &out} }
		d, a := n.pair(t, o)
		near, far := opened(t, d, a)
		n.set(func() { n.wrap = nil })
		go func() { _, _ = io.Copy(near, zeros{}) }() // until the session is closed
		reads := func(n int64) {
			if k, err := io.CopyN(io.Discard, far, n); err != nil {
				t.Fatalf("after %d bytes of %d: %v", k, n, err)
			}
		}
		for range 100 {
			reads(64 << 10)
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond) // until everything is acknowledged
		in.Store(true)
		began := time.Now()
		reads(4 * maxWindow)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
		n.close(t, d, a)
	})
}

// Where the first connection's socket is full, a stream's bulk does not queue up in it.
func TestFullConnectionTakesNoBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		for range 2 { // one makes a connection, the other finds it
			near, far := opened(t, d, a)
			synctest.Wait() // for writes and answers that are under way, which would set them again
			d.mu.Lock()
			d.keepalive.rtt, d.firstLocked().full = 100*time.Millisecond, true
			d.mu.Unlock()
			said := strings.Repeat("x", smallWrite+1)
			says(t, near, said)
			hears(t, far, said)
			synctest.Wait()
			if !alone(near) {
				t.Error("the stream has no connection of its own")
			}
		}
		n.close(t, d, a)
	})
}

// While a connection for bulk is made, the first one has a bounded part of it in flight.
func TestBulkWaitsForConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		var in, out atomic.Bool
		n.wrap = func(c *memnet.Conn) net.Conn { return halfDead{c, &in, &out} }
		d, a := n.pairBy(t, tunnel.Options{}, n.once())
		near, _ := opened(t, d, a)
		time.Sleep(time.Second) // until the window is known
		d.mu.Lock()
		c := d.firstLocked()
		d.keepalive.rtt = 100 * time.Millisecond
		d.mu.Unlock()
		in.Store(true) // no acknowledgement is received
		go func() { _, _ = io.Copy(near, zeros{}) }()
		inFlight := func() int {
			synctest.Wait()
			d.mu.Lock()
			defer d.mu.Unlock()
			return c.inFlight
		}
		time.Sleep(minAckTimeout / 2)
		if got := inFlight(); got < bulkThreshold || got >= bulkThreshold+turnSize {
			t.Errorf("%d bytes in flight", got)
		}
		time.Sleep(minAckTimeout)
		if got := inFlight(); got < 2*(bulkThreshold+turnSize)-1 {
			t.Errorf("%d bytes in flight, though no connection was made", got)
		}
		n.close(t, d, a)
	})
}
