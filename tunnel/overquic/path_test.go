// Paths that bear small packets only, and paths that are dead for long.

package overquic

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A path that passes no packet beyond the least that IPv6 asks for, and says
// nothing of it.
func TestSmallPackets(t *testing.T) {
	a, b, r := relayed(t, tunnel.Options{Link: quick})
	large := func(b []byte) bool { return len(b) > 1280-28 }
	r.lose(up, large)
	r.lose(down, large)
	prepared(t, a)
	for i, d := range []struct{ from, to tunnel.Session }{{a, b}, {b, a}} {
		f := newFlow(t, d.from, d.to, uint64(i))
		f.goesOn(t, 1<<20)
		f.end(t)
	}
}

// An upload goes on although its packets fill the window as soon as the path is
// back, the server does not know the address that they come from, and nothing is
// where it used to be.
func TestUploadOutlivesLongBlackhole(t *testing.T) {
	t.Parallel()
	a, b, r := relayed(t, tunnel.Options{Link: tunnel.LinkOptions{Keepalive: quick.Keepalive, DetachWindow: 5 * time.Minute}})
	prepared(t, a)
	r.lag.Store(int64(150 * time.Millisecond))
	f := newFlow(t, a, b, 1)
	f.goesOn(t, 1<<20)
	r.hole(true)
	// From then on the library by itself tries less often than the session does.
	dead := time.NewTimer(45 * time.Second)
	defer dead.Stop()
	<-dead.C
	r.rebind()
	r.hole(false)
	await(t, "the path's return", func() bool { return !parked(a) && !parked(b) })
	f.goesOn(t, 1<<20)
	f.end(t)
}

// While a session waits for what its latest try brings it knocks, and when that is
// answered it goes on.
func TestKnock(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"upload", "download"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			a, b, r := relayed(t, tunnel.Options{Link: tunnel.LinkOptions{Keepalive: quick.Keepalive, DetachWindow: 5 * time.Minute}})
			prepared(t, a)
			from, to := a, b
			if way == "download" {
				from, to = b, a
			}
			f := newFlow(t, from, to, 1)
			f.goesOn(t, 1<<20)
			var knocks atomic.Int32
			seen := map[string]bool{} // only the relay's one goroutine for this way uses it
			r.hole(true)
			r.lose(up, func(p []byte) bool {
				again := seen[string(p)]
				seen[string(p)] = true
				if again && parked(a) {
					knocks.Add(1)
					r.hole(false)
				}
				return !again
			})
			await(t, "a knock", func() bool { return knocks.Load() > 0 })
			await(t, "the path's return", func() bool { return !parked(a) && !parked(b) })
			f.goesOn(t, 1<<20)
			f.end(t)
		})
	}
}

// A path that passes fewer bytes at a time than it did, and says nothing of it,
// while transfers fill it: they go on, whichever end writes.
func TestPathNarrows(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"upload", "download", "both"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			a, b, r := relayed(t, tunnel.Options{Link: quick})
			prepared(t, a)
			var flows []*flow
			if way != "download" {
				flows = append(flows, newFlow(t, a, b, 1))
			}
			if way != "upload" {
				flows = append(flows, newFlow(t, b, a, 2))
			}
			goOn := func(n int64) {
				for _, f := range flows {
					f.goesOn(t, n)
				}
			}
			goOn(4 << 20) // until packets are as large as they get
			large := func(b []byte) bool { return len(b) > 1280-28 }
			r.lose(up, large)
			r.lose(down, large)
			began := time.Now()
			for range 3 {
				goOn(1 << 20)
			}
			t.Logf("on their way again after %v", time.Since(began).Round(time.Millisecond))
			for _, f := range flows {
				f.end(t)
			}
			dials(t, a, b)
		})
	}
}
