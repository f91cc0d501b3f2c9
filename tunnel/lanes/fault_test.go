package lanes

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
)

// A lane that dies takes along the streams that have a leg on it, at both ends,
// and no others.
func TestLaneDies(t *testing.T) {
	for _, when := range []string{"in the midst of a leg", "before the leg is seen"} {
		t.Run(when, func(t *testing.T) {
			directions(t, modest(), func(t *testing.T, r *road, from, to *Session) {
				r.prepare(t, 1)
				idle, idleFar := connect(t, from, to)
				near, far := connect(t, from, to)
				release := func() {}
				if when == "before the leg is seen" {
					release = tapOf(t, to, 1).hold()
				}
				var wrote error
				var wg sync.WaitGroup
				wg.Go(func() { wrote = say(near, 0, 1<<20) })
				synctest.Wait()
				if err := expect(far, 0, 20<<10); err != nil {
					t.Fatal(err)
				}
				_ = tapOf(t, from, 1).Close()
				release()
				if n, err := io.Copy(io.Discard, far); err == nil || n > 1<<20 {
					t.Errorf("%d bytes over a dead lane, %v", n, err)
				} else if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
					t.Errorf("and then %v", err)
				}
				wg.Wait()
				if wrote == nil {
					t.Error("all was written")
				}
				if _, err := near.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
					t.Errorf("the other direction: %v", err)
				}
				if err := both(func() error { return say(idle, 0, 100) }, func() error { return expect(idleFar, 0, 100) }); err != nil {
					t.Errorf("the stream beside it: %v", err)
				}
				synctest.Wait()
				if a, b := from.Lanes(), to.Lanes(); a != 1 || b != 1 {
					t.Errorf("%d and %d lanes are left", a, b)
				}
				_, _ = near.Close(), far.Close()
			})
		})
	}
}

// What a lane died of is what its streams say.
func TestLaneError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoad(t, modest(), DefaultMax)
		r.prepare(t, 1)
		near, far := connect(t, r.dialer, r.accepter)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := say(near, 0, 1<<20); err == nil {
				t.Error("all was written")
			}
		})
		synctest.Wait()
		_ = tapOf(t, r.accepter, 1).Close()
		wg.Wait()
		synctest.Wait()
		if _, err := near.Write(make([]byte, 1)); !errors.Is(err, tunnel.Lost) {
			t.Errorf("write: %v", err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, tunnel.Lost) {
			t.Errorf("read: %v", err)
		}
		_, _ = r.dialer.Close(), r.accepter.Close()
		_ = far.Close()
	})
}

// When lane 0 dies all is over, for lane 0's reason.
func TestLaneZeroDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoad(t, modest(), DefaultMax)
		r.prepare(t, 2)
		near, far := connect(t, r.dialer, r.accepter)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := say(near, 0, 1<<20); err == nil {
				t.Error("all was written")
			}
		})
		synctest.Wait()
		_ = r.far[0].Close()
		wg.Wait()
		<-r.dialer.Context().Done()
		<-r.accepter.Context().Done()
		if err := context.Cause(r.dialer.Context()); !errors.Is(err, tunnel.Lost) {
			t.Errorf("cause: %v", err)
		}
		nears, fars := r.ends()
		for i := range nears {
			if nears[i].Context().Err() == nil || fars[i].Context().Err() == nil {
				t.Errorf("lane %d lives on", i)
			}
		}
		if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("read: %v", err)
		}
		if _, err := r.dialer.Open(t.Context()); err == nil {
			t.Error("opened a stream")
		}
		near2, _ := inMemoryPair(t)
		if err := r.accepter.Add(9, near2); err == nil || near2.Context().Err() == nil {
			t.Errorf("lane added to a dead session: %v, %v", err, near2.Context().Err())
		}
	})
}

func inMemoryPair(t *testing.T) (a, b tunnel.Session) {
	t.Helper()
	a, b, err := inMemory(t.Context(), t, tunnel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// Without a further lane all stays on lane 0, after a moment, and nobody dials
// without end; as soon as there is one, streams move.
func TestNoLane(t *testing.T) {
	directions(t, standard, func(t *testing.T, r *road, from, to *Session) {
		r.fail = errors.New("no way")
		near, far := connect(t, from, to)
		began := time.Now()
		if err := both(func() error { return say(near, 0, 1<<20) }, func() error { return expect(far, 0, 1<<20) }); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > standard.patience {
			t.Errorf("waited %v for a lane", d)
		}
		at := int64(1 << 20)
		began = time.Now()
		for range 600 {
			if err := both(func() error { return say(near, at, 128<<10) }, func() error { return expect(far, at, 128<<10) }); err != nil {
				t.Fatal(err)
			}
			at += 128 << 10
			time.Sleep(time.Second)
		}
		if d := time.Since(began) - 600*time.Second; d > standard.patience {
			t.Errorf("waited %v for lanes that do not come", d)
		}
		if r.dialed() < 5 || r.dialed() > 20 {
			t.Errorf("%d dials in ten minutes", r.dialed())
		}
		r.mu.Lock()
		r.fail = nil
		r.mu.Unlock()
		time.Sleep(2 * time.Minute)
		for from.Lanes() == 1 && at < 1<<30 {
			if err := both(func() error { return say(near, at, 128<<10) }, func() error { return expect(far, at, 128<<10) }); err != nil {
				t.Fatal(err)
			}
			at += 128 << 10
			time.Sleep(time.Second)
		}
		if n := from.Lanes(); n != 2 {
			t.Errorf("%d lanes", n)
		}
	})
}

// One lane is no lane beside lane 0.
func TestMaxOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoad(t, standard, 1)
		near, far := connect(t, r.dialer, r.accepter)
		began := time.Now()
		if err := both(func() error { return say(near, 0, 4<<20) }, func() error { return expect(far, 0, 4<<20) }); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 0 || r.dialed() > 0 {
			t.Errorf("waited %v, dialed %d times", d, r.dialed())
		}
		_, _ = r.dialer.Close(), r.accepter.Close()
	})
}

// A parked lane gets no legs.
func TestParkedLane(t *testing.T) {
	directions(t, modest(), func(t *testing.T, r *road, from, to *Session) {
		r.prepare(t, 2)
		tapOf(t, from, 1).parked.Store(true)
		for range 2 {
			near, far := connect(t, from, to)
			if err := both(func() error { return say(near, 0, 1<<20) }, func() error { return expect(far, 0, 1<<20) }); err != nil {
				t.Fatal(err)
			}
		}
		if one, two := tapOf(t, from, 1).wrote.Load(), tapOf(t, from, 2).wrote.Load(); one != 0 || two < 1<<20 {
			t.Errorf("%d bytes on the parked lane, %d on the other", one, two)
		}
		// Nor does it say that the session is parked: that is lane 0's to say.
		if l := from.Link(); !l.Parked.IsZero() || l.Window == 0 {
			t.Errorf("state: %+v", l)
		}
	})
}

// While a direction waits for a lane it holds up nobody, and its own deadlines and
// its end are heeded.
func TestWaitingForLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(ctx context.Context, _ int) (tunnel.Session, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		d, a := pair(t, inMemory, tunnel.Options{}, Config{tune: modest(), Dial: slow})
		near, far := connect(t, d, a)
		began := time.Now()
		_ = near.SetWriteDeadline(began.Add(time.Second))
		var ne net.Error
		if err := say(near, 0, 1<<20); !errors.As(err, &ne) || !ne.Timeout() || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		other, otherFar := connect(t, d, a)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := say(other, 0, 1<<20); !errors.Is(err, net.ErrClosed) {
				t.Errorf("write: %v", err)
			}
		})
		synctest.Wait()
		began = time.Now()
		small, smallFar := connect(t, d, a)
		if err := both(func() error { return say(small, 0, 100) }, func() error { return expect(smallFar, 0, 100) }); err != nil {
			t.Error(err)
		}
		_ = other.Close()
		wg.Wait()
		if d := time.Since(began); d != 0 {
			t.Errorf("held up for %v", d)
		}
		_, _ = d.Close(), a.Close()
		_, _ = far.Close(), otherFar.Close()
	})
}

// Lanes are refused that are too many, or are there, or have been.
func TestAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoad(t, standard, 3)
		add := func(s *Session, lane int) error {
			near, _ := inMemoryPair(t)
			err := s.Add(lane, near)
			if (err == nil) != (near.Context().Err() == nil) {
				t.Errorf("lane %d: %v, but the session: %v", lane, err, near.Context().Err())
			}
			return err
		}
		for _, c := range []struct {
			lane int
			code tunnel.Code
		}{{0, tunnel.Invalid}, {-1, tunnel.Invalid}, {7, 0}, {7, tunnel.Invalid}, {8, 0}, {9, tunnel.Busy}} {
			if err := add(r.accepter, c.lane); tunnel.CodeOf(err) != c.code {
				t.Errorf("lane %d: %v, want code %d", c.lane, err, c.code)
			}
		}
		if err := add(r.dialer, 1); !errors.Is(err, tunnel.Invalid) {
			t.Errorf("lane added at the end that makes them: %v", err)
		}
		r.accepter.mu.Lock()
		gone := r.accepter.lanes[7].session
		r.accepter.mu.Unlock()
		_ = gone.Close()
		r.accepter.until(t, "lane gone", func() bool { return len(r.accepter.lanes) == 1 })
		if err := add(r.accepter, 7); !errors.Is(err, tunnel.Invalid) {
			t.Errorf("a lane that has been: %v", err)
		}
		if err := add(r.accepter, 9); err != nil {
			t.Error(err)
		}
		_, _ = r.dialer.Close(), r.accepter.Close()
	})
}

// Counts add up over all lanes there have been, and every lane moves.
func TestLinkAndMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoad(t, standard, DefaultMax)
		r.near[0].state = tunnel.LinkState{Parks: 1, Sent: 10, RTT: time.Second, Queued: 3}
		r.prepare(t, 2)
		for n := 1; n <= 2; n++ {
			tapOf(t, r.dialer, n).state = tunnel.LinkState{Parks: 1, Resumes: 1, Replayed: 2, Sent: 100, Received: 1, RTT: time.Hour, Queued: 5}
		}
		if err := tunnel.Move(t.Context(), r.dialer); err != nil {
			t.Error(err)
		}
		nears, _ := r.ends()
		for i, s := range nears {
			if s.moved.Load() != 1 {
				t.Errorf("lane %d moved %d times", i, s.moved.Load())
			}
		}
		want := tunnel.LinkState{Parks: 3, Resumes: 2, Replayed: 4, Sent: 210, Received: 2, RTT: time.Second, Queued: 13, Window: time.Minute}
		if got := r.dialer.Link(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		_ = tapOf(t, r.dialer, 1).Close()
		r.dialer.until(t, "lane gone", func() bool { return len(r.dialer.lanes) == 1 })
		want.Queued = 8
		if got := r.dialer.Link(); got != want {
			t.Errorf("after a lane's end: %+v, want %+v", got, want)
		}
		_, _ = r.dialer.Close(), r.accepter.Close()
	})
}

// A lane is dropped only if both ends have seen all legs there have been.
func TestRetireAgreed(t *testing.T) {
	directions(t, modest(), func(t *testing.T, r *road, from, to *Session) {
		r.prepare(t, 1)
		// The accepting end begins a leg that the dialing end does not see.
		release := tapOf(t, r.dialer, 1).hold()
		near, far := connect(t, r.accepter, r.dialer)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := errors.Join(say(near, 0, 1<<20), near.CloseWrite()); err != nil {
				t.Errorf("write: %v", err)
			}
		})
		time.Sleep(10 * standard.idle)
		if n := r.dialer.Lanes(); n != 2 {
			t.Fatalf("%d lanes with a leg on its way", n)
		}
		release()
		if err := errors.Join(expect(far, 0, 1<<20), isEnd(far)); err != nil {
			t.Error(err)
		}
		wg.Wait()
		_, _ = near.Close(), far.Close()
		time.Sleep(3 * standard.idle)
		if a, b := from.Lanes(), to.Lanes(); a != 1 || b != 1 {
			t.Errorf("%d and %d lanes after a long pause", a, b)
		}
	})
}
