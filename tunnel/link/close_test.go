// Closing and moving: what the other end learns, and in what time.

package link

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// stalled makes a connection that swallows everything.
func stalled(c net.Conn) net.Conn {
	c.(*memnet.Conn).Stall(true)
	return c
}

// The dialing end that closes a parked link makes one attempt to say so, whatever
// the wait before the next would have been; what was written goes along.
func TestCloseParkedDialing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		r.set(func() { r.down = errors.New("no way") })
		r.cut()
		send(t, a, "the last")
		time.Sleep(DefaultWindow / 2) // it waits between two attempts
		r.set(func() { r.down = nil })
		var wg sync.WaitGroup
		wg.Go(func() {
			if got, err := io.ReadAll(b); string(got) != "the last" || err != nil {
				t.Errorf("read %q, %v", got, err)
			}
		})
		start := time.Now()
		_ = a.Close()
		if d := time.Since(start); d != 0 {
			t.Errorf("close took %v", d)
		}
		wg.Wait()
		synctest.Wait()
		if n, _ := r.registry.Len(); n != 0 {
			t.Errorf("%d links left", n)
		}
		r.close(t, a, b)
	})
}

// That attempt is bounded: a network that refuses or swallows everything does
// not hold Close up.
func TestCloseParkedInVain(t *testing.T) {
	for _, tc := range []struct {
		name string
		bad  func(*rig)
		took time.Duration
	}{
		{"refused", func(r *rig) { r.down = errors.New("no way") }, 0},
		{"swallowed", func(r *rig) { r.wrap = stalled }, lastTry},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Config{})
				a, b := r.pair(t, Config{})
				r.set(func() { r.down = errors.New("no way") })
				r.cut()
				send(t, a, "x")
				send(t, b, "x")
				time.Sleep(DefaultWindow / 2)
				r.set(func() { r.down = nil; tc.bad(r) })
				start := time.Now()
				_ = a.Close()
				if d := time.Since(start); d != tc.took {
					t.Errorf("close took %v", d)
				}
				if _, err := b.Read(make([]byte, 1)); !errors.Is(err, tunnel.Lost) {
					t.Errorf("read: %v", err)
				}
				r.close(t, a, b)
			})
		})
	}
}

// The accepting end that closes, and is cut off while it does, still gets its
// last words across.
func TestCloseCutAccepting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		data := randomBytes(9, 200<<10)
		r.stall() // so that some of it is on its way
		if _, err := b.Write(data); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.Close() })
		synctest.Wait()
		r.cut()
		if got, err := io.ReadAll(a); string(got) != string(data) || err != nil {
			t.Errorf("read %d of %d, %v", len(got), len(data), err)
		}
		wg.Wait()
		r.close(t, a, b)
	})
}

// Move leaves the old transport alone until the new one has been taken, and for
// good if there is none to be had.
func TestMoveInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		r.set(func() { r.down = errors.New("no way") })
		if err := a.Move(t.Context()); err == nil {
			t.Error("moved nowhere")
		}
		r.set(func() { r.down, r.wrap = nil, stalled })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.Move(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("move: %v", err)
			}
		})
		synctest.Wait() // the attempt is under way
		send(t, a, "as before")
		expect(t, b, "as before")
		wg.Wait()
		send(t, b, "and after")
		expect(t, a, "and after")
		if s := a.Stats(); s.Parks+s.Resumes != 0 {
			t.Errorf("%+v", s)
		}
		r.set(func() { r.wrap = nil })
		r.close(t, a, b)
	})
}
