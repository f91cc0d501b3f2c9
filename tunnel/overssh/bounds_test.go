// Bounds: what idle streams cost, and what dials leave behind that nobody waited
// for.

package overssh

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// soon waits until ok, and says what is the matter if that never comes about.
func soon(t *testing.T, ok func() bool, matter func()) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			matter()
			t.Fatal("it never comes about")
		}
	}
}

// inUse is the memory that is in use, as far as it is the heap's or a stack's.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // what finalizers let go of
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// A thousand idle streams cost little, and nothing once they are closed.
func TestIdleStreams(t *testing.T) {
	const (
		n = 1000
		// most is what a stream may cost at this end, its target included: three
		// goroutines, and a little buffer.
		most = 48 << 10
	)
	l := openSSH(t)
	d, _ := run(t, l.config(t))
	ln := listen(t)
	pair(t, d, ln) // whatever is made once has been made
	before := inUse()
	near, far := make([]tunnel.Stream, n), make([]net.Conn, n)
	for i := range n {
		near[i], far[i] = pair(t, d, ln)
	}
	each := (inUse() - before) / n
	t.Logf("an idle stream holds %d bytes", each)
	if each > most {
		t.Errorf("an idle stream holds %d bytes, more than %d", each, most)
	}
	// They are idle, not dead.
	for _, i := range []int{0, n / 2, n - 1} {
		if _, err := far[i].Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(near[i], make([]byte, 1)); err != nil {
			t.Error(err)
		}
	}
	for i := range n {
		_ = near[i].Close()
		_ = far[i].Close()
	}
	soon(t, func() bool { return len(d.Opened) == 1 }, func() { t.Errorf("%d places are taken, want the first pair's", len(d.Opened)) })
}

// Dials that are given up at any moment leave no stream, no token, no connection to
// the target and no goroutine.
func TestCanceledDials(t *testing.T) {
	const dials, workers = 2000, 16
	for _, server := range servers {
		t.Run(server.name, func(t *testing.T) {
			l := server.start(t)
			d, _ := run(t, l.config(t))
			ln := listen(t)
			var accepted, closed atomic.Int64
			var targets sync.WaitGroup
			targets.Go(func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					accepted.Add(1)
					targets.Go(func() {
						_, _ = io.Copy(io.Discard, c) // until the end comes through
						_ = c.Close()
						closed.Add(1)
					})
				}
			})
			if err := try(t, d, ln.Addr().String()); err != nil {
				t.Fatal(err)
			}
			left := func() bool { return len(d.Opened) > 0 || accepted.Load() != closed.Load() }
			soon(t, func() bool { return !left() }, func() { t.Error("the check has left something") })
			before := runtime.NumGoroutine()
			var made, canceled atomic.Int64
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for range dials / workers {
						ctx, cancel := context.WithTimeout(t.Context(), rand.N(time.Millisecond<<rand.N(6)))
						st, err := d.Dial(ctx, "tcp", ln.Addr().String())
						cancel()
						switch {
						case err == nil:
							made.Add(1)
							_ = st.Close()
						case errors.Is(err, tunnel.Timeout):
							canceled.Add(1)
						default:
							t.Errorf("connect: %v", err)
						}
					}
				})
			}
			wg.Wait()
			t.Logf("%d dials were answered in time, %d not", made.Load(), canceled.Load())
			if canceled.Load() == 0 {
				t.Error("no dial was given up")
			}
			soon(t, func() bool { return !left() && runtime.NumGoroutine() <= before }, func() {
				t.Errorf("%d places, %d of %d connections to the target and %d goroutines (before: %d) are left",
					len(d.Opened), accepted.Load()-closed.Load(), accepted.Load(), runtime.NumGoroutine(), before)
			})
			if err := try(t, d, ln.Addr().String()); err != nil {
				t.Errorf("the session suffered: %v", err)
			}
			_ = ln.Close()
			targets.Wait()
		})
	}
}
