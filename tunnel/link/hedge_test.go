// Redialing on a path that changes under the attempt.

package link

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
