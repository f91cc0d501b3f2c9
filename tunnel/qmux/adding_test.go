// Adding connections: when attempts that have failed are made again.

package qmux

import (
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// adding is a session of which some streams send bulk for as long as the test lasts, and whose
// dials fail from the first connection on.
func adding(t *testing.T, streams int, by func(d, a *Session) (from, to *Session)) (n *network, d, a *Session, stop func()) {
	t.Helper()
	o := tunnel.Options{Link: tunnel.LinkOptions{Connections: 4}}
	n = newNetwork(o)
	d, a = n.pair(t, o)
	n.set(func() { n.down = errNoWay })
	from, to := by(d, a)
	var group sync.WaitGroup
	for range streams {
		near, far := opened(t, from, to)
		group.Go(func() { _, _ = io.Copy(io.Discard, far) })
		group.Go(func() { sendBulk(near, 50*time.Millisecond) })
	}
	return n, d, a, func() {
		n.close(t, d, a)
		group.Wait()
	}
}

// sendBulk writes 64 KiB at a time, with a pause between them, until that fails.
func sendBulk(w io.Writer, pause time.Duration) {
	for b := make([]byte, 64<<10); ; time.Sleep(pause) {
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

// adds has dials succeed again, and fails unless d has another connection within most.
func adds(t *testing.T, n *network, d *Session, most time.Duration) {
	t.Helper()
	n.set(func() { n.down = nil })
	began := time.Now()
	for d.Link().Connections < 2 && time.Since(began) < 10*time.Minute {
		time.Sleep(100 * time.Millisecond)
	}
	if took := time.Since(began); took > most {
		t.Errorf("a connection was added after %v", took)
	}
}

// Attempts to add connections that an outage has failed do not put further ones off once the
// session goes on.
func TestOutageDelaysNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d, _, stop := adding(t, 3, func(d, a *Session) (from, to *Session) { return d, a })
		time.Sleep(time.Minute)
		n.cut()
		for d.Link().Parked.IsZero() {
			time.Sleep(time.Millisecond)
		}
		adds(t, n, d, time.Second)
		stop()
	})
}

// Attempts that fail together put further ones off once.
func TestFailedTogetherCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d, _, stop := adding(t, 3, func(d, a *Session) (from, to *Session) { return d, a })
		time.Sleep(minGrowBackoff + time.Second) // they have failed twice
		adds(t, n, d, 2*minGrowBackoff)
		stop()
	})
}

// The accepting end asks again for connections that could not be made.
func TestConnectionsAreAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d, _, stop := adding(t, 1, func(d, a *Session) (from, to *Session) { return a, d })
		time.Sleep(4 * time.Second)
		adds(t, n, d, 2*minGrowBackoff)
		stop()
	})
}
