package lanes

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// directions runs a test from either end.
func directions(t *testing.T, tune tuning, f func(t *testing.T, r *road, from, to *Session)) {
	t.Helper()
	for _, name := range []string{"from the dialing end", "from the accepting end"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRoad(t, tune, DefaultMax)
				if from, to := r.dialer, r.accepter; name == "from the dialing end" {
					f(t, r, from, to)
				} else {
					f(t, r, to, from)
				}
				_, _ = r.dialer.Close(), r.accepter.Close()
			})
		})
	}
}

// What is much leaves lane 0 soon, and nothing of it is lost.
func TestBulkMoves(t *testing.T) {
	directions(t, standard, func(t *testing.T, r *road, from, to *Session) {
		for _, size := range []int64{100 << 10, 4 << 20} {
			for _, opener := range []*Session{from, to} {
				before := r.atHome()
				var near, far tunnel.Stream
				if opener == from {
					near, far = connect(t, from, to)
				} else {
					far, near = connect(t, to, from)
				}
				err := both(
					func() error { return errors.Join(say(near, 0, size), near.CloseWrite()) },
					func() error { return errors.Join(expect(far, 0, size), isEnd(far)) })
				if err != nil {
					t.Fatal(err)
				}
				if home := r.atHome() - before; home > int64(standard.far)+1024 {
					t.Errorf("%d of %d bytes on lane 0", home, size)
				}
				_, _ = near.Close(), far.Close()
			}
		}
		if n := from.Lanes(); n < 2 {
			t.Errorf("%d lanes", n)
		}
	})
}

// A short path pays for no lane before it has seen more, and never for a second
// one.
func TestShortPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			rtt    time.Duration
			size   int64
			lanes  int // then
			second int // and with a second large transfer
		}{
			{time.Millisecond, 120 << 10, 1, 2},
			{time.Millisecond, 1 << 20, 2, 2},
			{time.Second, 120 << 10, 2, 3},
			{0, 120 << 10, 2, 3},
		} {
			r := newRoad(t, standard, DefaultMax)
			r.near[0].state.RTT = c.rtt
			near, far := connect(t, r.dialer, r.accepter)
			if err := both(func() error { return say(near, 0, c.size) }, func() error { return expect(far, 0, c.size) }); err != nil {
				t.Fatal(err)
			}
			if n := r.dialer.Lanes(); n != c.lanes {
				t.Errorf("%d bytes at %v of round trip: %d lanes, want %d", c.size, c.rtt, n, c.lanes)
			}
			near2, far2 := connect(t, r.dialer, r.accepter)
			if err := both(func() error { return say(near2, 0, 1<<20) }, func() error { return expect(far2, 0, 1<<20) }); err != nil {
				t.Fatal(err)
			}
			if n := r.dialer.Lanes(); n != c.second {
				t.Errorf("a second transfer at %v of round trip: %d lanes, want %d", c.rtt, n, c.second)
			}
			_, _ = r.dialer.Close(), r.accepter.Close()
		}
	})
}

// A stream of keystrokes, or a log, goes on for an hour and never moves.
func TestTrickleStays(t *testing.T) {
	directions(t, standard, func(t *testing.T, _ *road, from, to *Session) {
		near, far := connect(t, from, to)
		const chunk = 8 << 10
		for i := range int64(3600) {
			if err := both(func() error { return say(near, i*chunk, chunk) }, func() error { return expect(far, i*chunk, chunk) }); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := from.Lanes(); n != 1 {
			t.Errorf("%d lanes for 8 KiB a second", n)
		}
	})
}

// A direction that has calmed down comes home, its lane is dropped, and the next
// burst has a new one.
func TestComesHome(t *testing.T) {
	directions(t, standard, func(t *testing.T, r *road, from, to *Session) {
		near, far := connect(t, from, to)
		var at int64
		burst := func(size int64) {
			t.Helper()
			if err := both(func() error { return say(near, at, size) }, func() error { return expect(far, at, size) }); err != nil {
				t.Fatal(err)
			}
			at += size
		}
		for round := 1; round <= 3; round++ {
			burst(1 << 20)
			if from.legs() != 1 || to.legs() != 1 {
				t.Fatalf("round %d: %d and %d legs after a burst", round, from.legs(), to.legs())
			}
			// Somebody reads, so that the end of the leg is seen.
			err := both(func() error {
				time.Sleep(10 * time.Second)
				return say(near, at, 1)
			}, func() error { return expect(far, at, 1) })
			if err != nil {
				t.Fatal(err)
			}
			at++
			if from.legs() != 0 || to.legs() != 0 {
				t.Fatalf("round %d: %d and %d legs after a pause", round, from.legs(), to.legs())
			}
			home := r.atHome()
			burst(1000)
			if said := r.atHome() - home; said < 1000 {
				t.Errorf("round %d: %d of 1000 bytes on lane 0", round, said)
			}
			time.Sleep(2 * standard.idle)
			if a, b := from.Lanes(), to.Lanes(); a != 1 || b != 1 {
				t.Errorf("round %d: %d and %d lanes after a long pause", round, a, b)
			}
		}
		if r.dialed() != 3 {
			t.Errorf("%d lanes dialed, want 3", r.dialed())
		}
	})
}

// While nobody reads a leg that has ended, what follows does not flood lane 0.
func TestUnreadLeg(t *testing.T) {
	directions(t, modest(), func(t *testing.T, r *road, from, to *Session) {
		r.prepare(t, 1)
		near, far := connect(t, from, to)
		const first = 80 << 10 // fits into the windows
		if err := say(near, 0, first); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // and it comes home
		before := r.atHome()
		_ = near.SetWriteDeadline(time.Now().Add(time.Minute))
		n, err := io.Copy(near, &pattern{at: first, left: 1 << 20})
		if !isTimeout(err) {
			t.Errorf("write: %v", err)
		}
		if home := r.atHome() - before; home > int64(modest().far)+1024 {
			t.Errorf("%d bytes on lane 0 while nobody reads", home)
		}
		_ = near.SetWriteDeadline(time.Time{})
		if err := both(func() error { return errors.Join(say(near, first+n, 1<<20), near.CloseWrite()) }, func() error {
			return errors.Join(expect(far, 0, first+n+1<<20), isEnd(far))
		}); err != nil {
			t.Error(err)
		}
		if home := r.atHome() - before; home > 2*int64(modest().far)+1024 {
			t.Errorf("%d bytes on lane 0", home)
		}
	})
}

// A path that has become long since anybody measured it gets more lanes, for those
// who wait for the first one already.
func TestStaleRoundTrip(t *testing.T) {
	directions(t, standard, func(t *testing.T, r *road, from, to *Session) {
		r.near[0].state.RTT, r.far[0].state.RTT = time.Millisecond, time.Millisecond
		r.slow = 400 * time.Millisecond
		var wg sync.WaitGroup
		for range 16 {
			near, far := connect(t, from, to)
			wg.Go(func() {
				if err := both(func() error { return say(near, 0, 1<<20) }, func() error { return expect(far, 0, 1<<20) }); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := from.Lanes(); n != DefaultMax {
			t.Errorf("%d lanes", n)
		}
	})
}

// Sixteen at once share what lanes there may be, and there are no more.
func TestLanesAreShared(t *testing.T) {
	directions(t, standard, func(t *testing.T, r *road, from, to *Session) {
		var wg sync.WaitGroup
		for range 16 {
			near, far := connect(t, from, to)
			wg.Go(func() {
				if err := say(near, 0, 1<<20); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if err := expect(far, 0, 1<<20); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		from.mu.Lock()
		defer from.mu.Unlock()
		if len(from.lanes) != DefaultMax-1 || r.dialed() != DefaultMax-1 {
			t.Errorf("%d lanes beside lane 0 of %d dialed, want %d", len(from.lanes), r.dialed(), DefaultMax-1)
		}
		for n, l := range from.lanes {
			if len(l.legs) < 5 || len(l.legs) > 6 {
				t.Errorf("lane %d has %d of 16 legs", n, len(l.legs))
			}
		}
	})
}

// Both directions move at the same time, again and again.
func TestBothDirections(t *testing.T) {
	directions(t, standard, func(t *testing.T, r *road, from, to *Session) {
		near, far := connect(t, from, to)
		const size = 3 << 20
		talk := func(st tunnel.Stream) func() error {
			return func() error {
				return both(
					func() error { return errors.Join(say(st, 0, size), st.CloseWrite()) },
					func() error { return errors.Join(expect(st, 0, size), isEnd(st)) })
			}
		}
		if err := both(talk(near), talk(far)); err != nil {
			t.Fatal(err)
		}
		if home := r.atHome(); home > 2*int64(standard.far)+1024 {
			t.Errorf("%d bytes on lane 0", home)
		}
		_, _ = near.Close(), far.Close()
	})
}

// The mark may come long before the leg or long after it.
func TestMarkAndLeg(t *testing.T) {
	t.Run("mark first", func(t *testing.T) {
		directions(t, modest(), func(t *testing.T, r *road, from, to *Session) {
			r.prepare(t, 1)
			release := tapOf(t, to, 1).hold()
			near, far := connect(t, from, to)
			err := both(func() error { return errors.Join(say(near, 0, 1<<20), near.CloseWrite()) }, func() error {
				if err := expect(far, 0, int64(modest().far)-1); err != nil {
					return err
				}
				// The leg has been announced. Deadlines hold while it is awaited.
				_ = far.SetReadDeadline(time.Now().Add(10 * time.Second))
				if n, err := far.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("waiting for the leg: %d bytes, %v", n, err)
				}
				_ = far.SetReadDeadline(time.Time{})
				release()
				at := int64(modest().far) - 1
				return errors.Join(expect(far, at, 1<<20-at), isEnd(far))
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("leg first", func(t *testing.T) {
		directions(t, modest(), func(t *testing.T, r *road, from, to *Session) {
			r.prepare(t, 1)
			near, far := connect(t, from, to)
			err := both(func() error { return errors.Join(say(near, 0, 1<<20), near.CloseWrite()) }, func() error {
				synctest.Wait() // until the writer waits for the reader
				if to.legs() != 1 {
					t.Errorf("%d legs", to.legs())
				}
				return errors.Join(expect(far, 0, 1<<20), isEnd(far))
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("leg before the number", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRoad(t, modest(), DefaultMax)
			r.prepare(t, 1)
			near, err := r.dialer.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			err = both(func() error { return errors.Join(say(near, 0, 1<<20), near.CloseWrite()) }, func() error {
				far, err := r.accepter.Accept(t.Context())
				if err != nil {
					return err
				}
				synctest.Wait() // until the writer waits for the reader
				return errors.Join(expect(far, 0, 1<<20), isEnd(far))
			})
			if err != nil {
				t.Fatal(err)
			}
			_, _ = r.dialer.Close(), r.accepter.Close()
		})
	})
}

// The other direction ends, one way or another, while this one is about to move.
func TestPeerEndsMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(far tunnel.Stream) error
		want error // what the writer gets; nil if all goes through
	}{
		{"half-closes", func(far tunnel.Stream) error { return far.CloseWrite() }, nil},
		{"closes", func(far tunnel.Stream) error { return far.Close() }, syscall.EPIPE},
		{"aborts", func(far tunnel.Stream) error { return tunnel.Abort(far) }, syscall.ECONNRESET},
	} {
		t.Run(c.name, func(t *testing.T) {
			directions(t, modest(), func(t *testing.T, r *road, from, to *Session) {
				r.prepare(t, 1)
				release := tapOf(t, to, 1).hold()
				near, far := connect(t, from, to)
				var wrote error
				var wg sync.WaitGroup
				wg.Go(func() {
					if wrote = say(near, 0, 1<<20); wrote == nil {
						wrote = near.CloseWrite()
					}
				})
				synctest.Wait() // the leg has begun, and nobody has seen it
				if from.legs() != 1 || to.legs() != 0 {
					t.Errorf("%d and %d legs", from.legs(), to.legs())
				}
				if err := c.end(far); err != nil {
					t.Error(err)
				}
				release()
				if c.want == nil {
					if err := expect(far, 0, 1<<20); err != nil {
						t.Error(err)
					}
				}
				wg.Wait()
				if c.want == nil && wrote != nil || c.want != nil && !errors.Is(wrote, c.want) && !errors.Is(wrote, syscall.ECONNRESET) {
					t.Errorf("writer: %v", wrote)
				}
				if c.name == "half-closes" {
					if err := isEnd(near); err != nil {
						t.Error(err)
					}
				}
				_, _ = near.Close(), far.Close()
				synctest.Wait()
				if from.legs() != 0 || to.legs() != 0 {
					t.Errorf("%d and %d legs are left", from.legs(), to.legs())
				}
			})
		})
	}
}

// A reader that waits for a leg learns that its stream was given up.
func TestAbortBeforeLeg(t *testing.T) {
	directions(t, modest(), func(t *testing.T, r *road, from, to *Session) {
		r.prepare(t, 1)
		defer tapOf(t, to, 1).hold()()
		near, far := connect(t, from, to)
		err := both(func() error {
			_ = near.SetWriteDeadline(time.Now().Add(time.Minute))
			if err := say(near, 0, 1<<20); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("nobody takes the leg: %v", err)
			}
			return tunnel.Abort(near)
		}, func() error {
			if err := expect(far, 0, int64(modest().far)-1); err != nil {
				return err
			}
			if n, err := far.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("waiting for a leg that was given up: %d bytes, %v", n, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = far.Close()
	})
}

// What Close leaves behind still arrives, however slow the leg is.
func TestCloseDeliversOnLeg(t *testing.T) {
	directions(t, modest(), func(t *testing.T, r *road, from, to *Session) {
		r.prepare(t, 1)
		near, far := connect(t, from, to)
		const size = 80 << 10 // fits into the windows
		if err := say(near, 0, size); err != nil {
			t.Fatal(err)
		}
		if err := near.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after Close: %v", err)
		}
		if _, err := near.Write(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after Close: %v", err)
		}
		time.Sleep(standard.parting / 2)
		if err := errors.Join(expect(far, 0, size), isEnd(far)); err != nil {
			t.Error(err)
		}
		_ = far.Close()
		synctest.Wait()
		if from.legs() != 0 || to.legs() != 0 {
			t.Errorf("%d and %d legs are left", from.legs(), to.legs())
		}
	})
}

// Close in the midst of a Write must not look like an end.
func TestCloseInterruptsWrite(t *testing.T) {
	for _, lanes := range []int{1, DefaultMax} {
		synctest.Test(t, func(t *testing.T) {
			r := newRoad(t, modest(), lanes)
			near, far := connect(t, r.dialer, r.accepter)
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := say(near, 0, 1<<20); !errors.Is(err, net.ErrClosed) {
					t.Errorf("write: %v", err)
				}
			})
			synctest.Wait() // the windows are full
			if err := near.Close(); err != nil {
				t.Error(err)
			}
			wg.Wait()
			if n, err := io.Copy(io.Discard, far); err == nil {
				t.Errorf("%d bytes of a write that was interrupted, and an orderly end", n)
			}
			_, _ = r.dialer.Close(), r.accepter.Close()
		})
	}
}
