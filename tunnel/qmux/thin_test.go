// Tests of links that carry hardly anything: bulk stays away from the connection that heartbeats use.

package qmux

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A stream all of whose data is in flight, on a link that delivers little of it, keeps its
// connection: its next data would go over the first.
func TestStreamInFlightKeepsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		bulk := make([]byte, 2*bulkThresholdShortPath)
		go func() { _, _ = near.Write(bulk) }() // the reader notices
		if _, err := io.ReadFull(far, bulk); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !alone(near) {
			t.Fatal("the stream has no connection of its own")
		}
		n.set(func() { n.near[1].Stall(true) })
		says(t, near, string(bulk[:2*keepConnBytes]))
		synctest.Wait()
		sweep := func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.sweepLocked(time.Now())
		}
		for range 2 { // the first one counts what was sent before
			sweep()
		}
		if !alone(near) {
			t.Error("the stream lost its connection, though it has data in flight")
		}
		n.set(func() { n.near[1].Stall(false) })
		if _, err := io.ReadFull(far, bulk[:2*keepConnBytes]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // until it is acknowledged: the bubble's clock
		for range 2 {
			sweep()
		}
		if alone(near) {
			t.Error("the stream kept its connection, though it has nothing to send")
		}
		n.close(t, d, a)
	})
}

// After a connection beside the first has fallen silent, the first takes little of its bulk at a time
// until acknowledgements come.
func TestFirstIsNotFloodedAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		bulk := make([]byte, 8*maxTrusted)
		send := func() { _, _ = near.Write(bulk) } // the reader notices
		receive := func() {
			if _, err := io.ReadFull(far, bulk); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * ackDelay) // until it is acknowledged: the bubble's clock
		}
		go send()
		receive()
		if !alone(near) {
			t.Fatal("the stream has no connection of its own")
		}
		n.set(func() {
			n.down = errNoWay // no other one can be made
			n.near[0].StallReads(true)
		})
		d.mu.Lock()
		first, beside := d.conns[0], d.conns[1]
		beside.owedSince = time.Now()
		d.lostLocked(beside, tunnel.Dead)
		d.mu.Unlock()
		go send()
		synctest.Wait()
		d.mu.Lock()
		if got := first.inFlight; got < minTrusted || got >= minTrusted+turnSize {
			t.Errorf("%d bytes in flight", got)
		}
		d.mu.Unlock()
		n.set(func() { n.near[0].StallReads(false) })
		receive()
		d.mu.Lock()
		if first.trusted != 0 {
			t.Errorf("after acknowledgements %d bytes may be in flight, and no more", first.trusted)
		}
		d.mu.Unlock()
		n.close(t, d, a)
	})
}

// A stream that is reset makes room for bulk that the first connection holds, also if its own frame
// goes over another connection.
func TestResetReleasesHeldBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		one, far := opened(t, d, a)
		bulk := make([]byte, 2*bulkThresholdShortPath)
		go func() { _, _ = one.Write(bulk) }() // the reader notices
		if _, err := io.ReadFull(far, bulk); err != nil {
			t.Fatal(err)
		}
		two, _ := opened(t, d, a)
		three, _ := opened(t, d, a)
		time.Sleep(2 * ackDelay) // until it is acknowledged: the bubble's clock
		n.set(func() { n.near[0].StallReads(true) })
		d.mu.Lock()
		d.conns[0].trusted = minTrusted
		d.mu.Unlock()
		says(t, two, string(bulk[:minTrusted]))
		says(t, three, string(bulk[:minTrusted]))
		held := func() int {
			synctest.Wait()
			d.mu.Lock()
			defer d.mu.Unlock()
			return three.(*stream).sendable()
		}
		if got := held(); got != minTrusted {
			t.Fatalf("%d bytes are held", got)
		}
		d.mu.Lock()
		d.assignLocked(two.(*stream), d.conns[1])
		d.mu.Unlock()
		if err := two.(tunnel.Aborter).Abort(); err != nil {
			t.Fatal(err)
		}
		if got := held(); got != 0 {
			t.Errorf("%d bytes are held still", got)
		}
		n.close(t, d, a)
	})
}

// Also on a short path the first connection has a bounded part of the bulk in flight while one for it
// is made: if the link turns thin then, heartbeats wait for all of it.
func TestShortPathHoldsBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		var in, out atomic.Bool
		n.wrap = func(c *memnet.Conn) net.Conn { return halfDead{c, &in, &out} }
		d, a := n.pairBy(t, tunnel.Options{}, n.once())
		near, far := opened(t, d, a)
		time.Sleep(time.Second) // until the round trip is known: the bubble's clock
		several := func(n int) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.conf.connections = n
		}
		several(1)
		grown := make([]byte, 4*maxWindow) // until the window is large
		go func() { _, _ = near.Write(grown) }()
		if _, err := io.ReadFull(far, grown); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // until all is acknowledged: the bubble's clock
		several(2)
		in.Store(true) // no acknowledgement is received
		go func() { _, _ = io.Copy(near, zeros{}) }()
		synctest.Wait()
		d.mu.Lock()
		if got := d.firstLocked().inFlight; got < bulkThresholdShortPath || got >= bulkThresholdShortPath+2*turnSize {
			t.Errorf("%d bytes in flight", got)
		}
		d.mu.Unlock()
		n.close(t, d, a)
	})
}

// TestSmallDataHoldsNoBulk: small data is sent without a bound, and where it never stops bulk
// would wait for ever.
func TestSmallDataHoldsNoBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		var small []tunnel.Stream
		for range minTrusted / smallWrite {
			st, _ := opened(t, d, a)
			small = append(small, st)
		}
		bulk, _ := opened(t, d, a)
		time.Sleep(2 * ackDelay) // the bubble's clock
		n.set(func() { n.near[0].StallReads(true) })
		d.mu.Lock()
		d.conns[0].trusted = minTrusted
		d.mu.Unlock()
		for _, st := range small {
			says(t, st, strings.Repeat("x", smallWrite))
			synctest.Wait()
		}
		says(t, bulk, strings.Repeat("x", minTrusted))
		synctest.Wait()
		d.mu.Lock()
		if got := bulk.(*stream).sendable(); got != 0 {
			t.Errorf("%d bytes of bulk are held, and no bulk is in flight", got)
		}
		d.mu.Unlock()
		n.close(t, d, a)
	})
}

// TestQueued: a round trip has a queue in it if it is longer than the path's, however long that is.
func TestQueued(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name                 string
		now, shortest, usual time.Duration
		want                 bool
	}{
		{"short path", 20 * ms, 20 * ms, 20 * ms, false},
		{"short path, with a queue", 2000 * ms, 20 * ms, 20 * ms, true},
		{"usual round trip has followed the queue", 2000 * ms, 20 * ms, 1900 * ms, true},
		{"the path has become longer", 500 * ms, 20 * ms, 400 * ms, false},
		{"long path", 1210 * ms, 1200 * ms, 1200 * ms, false},
		{"long path, with a queue", 3000 * ms, 1200 * ms, 1200 * ms, true},
		{"nothing is known", 0, 0, 0, false},
	} {
		if got := queued(c.now, c.shortest, c.usual); got != c.want {
			t.Errorf("%s: queued %v", c.name, got)
		}
	}
}
