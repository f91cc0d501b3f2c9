// Paths that change under an attempt, that are slow, and that work one way only.

package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// pairBy makes a link whose dialing end dials in a way of its own.
func pairBy(t *testing.T, r *rig, dial func(context.Context) (net.Conn, error)) (dialer, accepter *Link) {
	t.Helper()
	dialer, err := Dial(t.Context(), dial, Config{})
	if err != nil {
		t.Fatal(err)
	}
	return dialer, <-r.accepted
}

// A connection that hangs half-way does not hold up the link: another attempt is
// made beside it within a second, and it is what counts.
func TestHangingDialIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		var hanging atomic.Int32
		var dials atomic.Int32
		a, b := pairBy(t, r, func(ctx context.Context) (net.Conn, error) {
			dials.Add(1)
			if hanging.Add(-1) >= 0 {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return r.dial(ctx)
		})
		hanging.Store(3)
		dials.Store(0)
		start := time.Now()
		r.cut()
		send(t, a, "on we go")
		expect(t, b, "on we go")
		if d := time.Since(start); d != 3*hedge {
			t.Errorf("three hanging dials held the link up for %v", d)
		}
		if n := dials.Load(); n != 4 {
			t.Errorf("%d dials", n)
		}
		r.close(t, a, b)
	})
}

// A path that was dead for long is used within a second of its working again,
// though TCP asks for a connection ever more seldom, and a name server that does
// not answer has to be given up first.
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
	r := newRig(t, Config{})
	var works time.Time // when the path does again
	var under, most atomic.Int32
	a, b := pairBy(t, r, func(ctx context.Context) (net.Conn, error) {
		if n := under.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer under.Add(-1)
		wait := func(d time.Duration) error {
			select {
			case <-time.After(d):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := wait(resolving); err != nil {
			return nil, err
		}
		for pause := time.Second; time.Now().Before(works); pause *= 2 { // RFC 6298
			if err := wait(pause); err != nil {
				return nil, err
			}
		}
		return r.dial(ctx)
	})
	works = time.Now().Add(dead)
	r.cut()
	send(t, a, "on we go")
	expect(t, b, "on we go")
	if late := time.Since(works); late > time.Second {
		t.Errorf("the link was resumed %v after the path worked again", late)
	}
	if n := most.Load(); n > 1+2*hedges+1 { // one of them on its way out
		t.Errorf("%d connections were tried at a time", n)
	}
	r.close(t, a, b)
}

// So it is where the system says at once that there is no way.
func TestNoRouteIsTriedEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		for range 20 {
			r.set(func() { r.down = os.NewSyscallError("connect", syscall.ENETUNREACH) })
			r.cut()
			time.Sleep(30 * time.Second) // the bubble's clock
			r.set(func() { r.down = nil })
			start := time.Now()
			send(t, a, "on we go")
			expect(t, b, "on we go")
			if late := time.Since(start); late > time.Second {
				t.Errorf("the link was resumed %v after there was a way again", late)
			}
		}
		r.close(t, a, b)
	})
}

// Nor does one on which nothing is answered once it is there.
func TestSilentResumptionIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		var silent atomic.Int32
		a, b := pairBy(t, r, func(ctx context.Context) (net.Conn, error) {
			c, err := r.dial(ctx)
			if err == nil && silent.Add(-1) >= 0 {
				c.(*memnet.Conn).Stall(true)
			}
			return c, err
		})
		silent.Store(1)
		start := time.Now()
		r.cut()
		send(t, a, "on we go")
		expect(t, b, "on we go")
		if d := time.Since(start); d < resumeTimeout || d > resumeTimeout+lowestBackoff {
			t.Errorf("one silent connection held the link up for %v", d)
		}
		r.close(t, a, b)
	})
}

// delayed is a connection across a path that takes so long each way. Its end is
// passed on, and nothing is lost.
func delayed(path *sync.WaitGroup, c net.Conn, each time.Duration) net.Conn {
	near, far := memnet.Pipe(c.LocalAddr(), c.RemoteAddr())
	pass := func(to, from net.Conn) {
		type parcel struct {
			data []byte
			due  time.Time
		}
		way := make(chan parcel, 1024)
		path.Go(func() {
			for p := range way {
				time.Sleep(time.Until(p.due)) // the bubble's clock
				if _, err := to.Write(p.data); err != nil {
					_ = from.Close()
				}
			}
			_ = to.Close()
		})
		defer close(way)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if n > 0 {
				way <- parcel{buf[:n], time.Now().Add(each)}
			}
			if err != nil {
				return
			}
		}
	}
	path.Go(func() { pass(far, c) })
	path.Go(func() { pass(c, far) })
	return near
}

// A path on which a round trip takes three seconds is resumed on: connections
// take long to come about there, and so do answers.
func TestSlowPathResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = 3 * time.Second
		r := newRig(t, Config{})
		var path sync.WaitGroup
		var dials atomic.Int32
		a, b := pairBy(t, r, func(ctx context.Context) (net.Conn, error) {
			dials.Add(1)
			for range 2 { // TCP and TLS
				select {
				case <-time.After(trip):
					tunnel.Reached(ctx)
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
			c, err := r.dial(ctx)
			if err != nil {
				return nil, err
			}
			return delayed(&path, c, trip/2), nil
		})
		dials.Store(0)
		start := time.Now()
		r.cut()
		synctest.Wait()
		send(t, a, "on we go")
		expect(t, b, "on we go")
		if d := time.Since(start); d < 3*trip || d > 4*trip {
			t.Errorf("it took %v, want three round trips and half of one", d)
		}
		if n := dials.Load(); n > 6 {
			t.Errorf("%d dials", n)
		}
		r.close(t, a, b)
		path.Wait()
	})
}

// A deafConn swallows, while its switch is on, whatever comes in or whatever goes
// out.
type deafConn struct {
	net.Conn
	in, out *atomic.Bool
}

func (c deafConn) Read(p []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(p); err != nil || !c.in.Load() {
			return n, err
		}
	}
}

func (c deafConn) Write(p []byte) (int, error) {
	if c.out.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Where only one direction is dead, the end that hears nothing says so before it
// hangs up: the other would take it for one that died.
func TestDeafEndSaysSo(t *testing.T) {
	for _, way := range []string{"to the dialing end", "to the accepting end"} {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Config{})
				var in, out atomic.Bool
				a, b := pairBy(t, r, func(ctx context.Context) (net.Conn, error) {
					c, err := r.dial(ctx)
					return deafConn{c, &in, &out}, err
				})
				dead, heard := &in, b
				if way == "to the accepting end" {
					dead, heard = &out, a
				}
				told := make(chan error, 16)
				heard.Tell(func(s Stats) {
					if !s.Parked.IsZero() {
						told <- s.Cause
					}
				})
				var reading sync.WaitGroup
				for _, l := range []*Link{a, b} {
					reading.Go(func() { _, _ = io.Copy(io.Discard, l) })
				}
				dead.Store(true)
				if err := <-told; !errors.Is(err, tunnel.Dead) {
					t.Errorf("the end that is heard is parked by %v", err)
				}
				dead.Store(false)
				r.close(t, a, b)
				reading.Wait()
			})
		})
	}
}
