// What all sessions of a process may have received that nobody reads.

package mux_test

import (
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/mux"
)

// sharing makes a rig whose accepting end shares an Intake.
func sharing(t *testing.T, p carrier.Protocol, intake *tunnel.Intake) *rig {
	t.Helper()
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	return &rig{
		link:     a,
		dialer:   one(t, p, a, true, tunnel.Options{Intake: tunnel.NewIntake(0)}),
		accepter: one(t, p, b, false, tunnel.Options{Intake: intake}),
	}
}

func (r *rig) end() {
	_, _ = r.dialer.Close(), r.accepter.Close()
	r.writers.Wait()
}

// eachProtocol runs f in a bubble for each framing.
func eachProtocol(t *testing.T, f func(t *testing.T, p carrier.Protocol)) {
	t.Helper()
	for _, p := range protocols {
		t.Run(p.Name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { f(t, p) }) })
	}
}

// carries sends n bytes over a new stream of r and has them read.
func (r *rig) carries(t *testing.T, n int) {
	t.Helper()
	near, far := open(t, r.dialer, r.accepter)
	r.writers.Go(func() {
		_, _ = near.Write(make([]byte, n)) // the reader counts
		_ = near.CloseWrite()
	})
	if got, err := io.Copy(io.Discard, far); got != int64(n) || err != nil {
		t.Errorf("a neighbour got %d bytes, %v", got, err)
	}
	_, _ = near.Close(), far.Close()
}

// Stalled readers of many sessions have no more unread than the limit, and the others
// go on. When they are gone nothing is left.
func TestIntakeBoundsAllSessions(t *testing.T) {
	const (
		sessions = 8
		streams  = 32
		least    = sessions * streams * mux.Least // 16 MiB
	)
	for name, tc := range map[string]struct{ limit, most int64 }{
		"room for all":                   {2 * least, 2 * least},
		"more streams than are foreseen": {least / 8, least + least/16},
	} {
		t.Run(name, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, p carrier.Protocol) {
				intake := tunnel.NewIntake(tc.limit)
				var rigs []*rig
				var stalled [][2]tunnel.Stream
				for range sessions {
					r := sharing(t, p, intake)
					rigs = append(rigs, r)
					near, far := r.bulk(t, streams)
					for i := range near {
						stalled = append(stalled, [2]tunnel.Stream{near[i], far[i]})
					}
				}
				synctest.Wait() // every window is full
				unread := 0
				for _, r := range rigs {
					n, _ := r.accepter.Unread()
					unread += n
				}
				if int64(unread) != intake.Unread() || unread < least || int64(unread) > tc.most {
					t.Errorf("%d bytes lie unread, counted as %d, want %d at most", unread, intake.Unread(), tc.most)
				}
				if g := intake.Granted(); g > tc.limit/2 {
					t.Errorf("%d bytes are granted, of %d", g, tc.limit/2)
				}
				for _, r := range rigs {
					r.carries(t, 1<<20)
				}
				for i, st := range stalled {
					_ = st[i%2].Close() // of the reader, or of the writer
					_ = tunnel.Abort(st[1-i%2])
				}
				synctest.Wait()
				if intake.Unread() != 0 || intake.Granted() != 0 {
					t.Errorf("in the end: %d unread, %d granted", intake.Unread(), intake.Granted())
				}
				for _, r := range rigs {
					r.carries(t, 1<<20)
					r.end()
				}
			})
		})
	}
}

// While too much lies unread a stream that is read has a small window, and later its
// old one.
func TestIntakeNarrows(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p carrier.Protocol) {
		intake := tunnel.NewIntake(4 << 20)
		r := sharing(t, p, intake)
		_, far := r.bulk(t, 1) // gets 256 KiB
		hog := sharing(t, p, intake)
		_, stalled := hog.bulk(t, 40)
		synctest.Wait()
		if !intake.Scarce() {
			t.Fatalf("%d bytes lie unread", intake.Unread())
		}
		skip := func(n int64) (unread int) {
			t.Helper()
			if _, err := io.CopyN(io.Discard, far[0], n); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			unread, _ = r.accepter.Unread()
			return unread
		}
		if n := skip(1 << 20); n == 0 || n > mux.MaxFrame {
			t.Errorf("%d bytes lie unread, want a window of %d", n, mux.MaxFrame)
		}
		for _, st := range stalled {
			_ = st.Close()
		}
		synctest.Wait()
		if n := skip(1 << 20); n < mux.Least/2 {
			t.Errorf("%d bytes lie unread, want a window of %d or more", n, mux.Least)
		}
		_ = far[0].Close()
		r.end()
		hog.end()
		if intake.Unread() != 0 || intake.Granted() != 0 {
			t.Errorf("in the end: %d unread, %d granted", intake.Unread(), intake.Granted())
		}
	})
}

// Whatever becomes of a stream and its session, what it had is given back.
func TestIntakeComesBack(t *testing.T) {
	for name, end := range map[string]func(r *rig, near, far tunnel.Stream){
		"read to the end": func(_ *rig, near, far tunnel.Stream) {
			_ = near.Close()
			_, _ = io.Copy(io.Discard, far)
		},
		"closed by the reader":         func(_ *rig, _, far tunnel.Stream) { _ = far.Close() },
		"given up by the reader":       func(_ *rig, _, far tunnel.Stream) { _ = tunnel.Abort(far) },
		"given up by the writer":       func(_ *rig, near, _ tunnel.Stream) { _ = tunnel.Abort(near) },
		"session closed by the reader": func(r *rig, _, _ tunnel.Stream) { _ = r.accepter.Close() },
		"session closed by the writer": func(r *rig, _, _ tunnel.Stream) { _ = r.dialer.Close() },
		"connection lost":              func(r *rig, _, _ tunnel.Stream) { _ = r.link.Abort() },
		"connection stalls":            func(r *rig, _, _ tunnel.Stream) { r.link.Stall(true); _ = r.accepter.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, p carrier.Protocol) {
				intake := tunnel.NewIntake(0)
				r := sharing(t, p, intake)
				said := make([]byte, 100_000)
				var both [][2]tunnel.Stream
				for range 8 {
					near, far := open(t, r.dialer, r.accepter)
					both = append(both, [2]tunnel.Stream{near, far})
					r.writers.Go(func() { _, _ = near.Write(said) })
				}
				for range 8 { // these nobody accepts
					if other, err := r.dialer.Open(t.Context()); err != nil {
						t.Error(err)
					} else {
						defer other.Close()
						r.writers.Go(func() {
							if _, err := other.Write(said); err == nil {
								t.Error("all was taken of what nobody reads")
							}
						})
					}
				}
				synctest.Wait()
				if intake.Unread() == 0 || intake.Granted() == 0 {
					t.Fatalf("%d unread, %d granted", intake.Unread(), intake.Granted())
				}
				var ending sync.WaitGroup
				for _, st := range both {
					ending.Go(func() {
						end(r, st[0], st[1])
						_, _ = st[0].Close(), st[1].Close()
					})
				}
				ending.Wait()
				synctest.Wait()
				r.end()
				if intake.Unread() != 0 || intake.Granted() != 0 {
					t.Errorf("in the end: %d unread, %d granted", intake.Unread(), intake.Granted())
				}
			})
		})
	}
}

// What is heard of a session that this end has closed is not taken for all there was.
func TestClosedSessionHearsNoEnd(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p carrier.Protocol) {
		r := sharing(t, p, tunnel.NewIntake(0))
		near, far := open(t, r.dialer, r.accepter)
		r.link.Stall(true)
		r.writers.Go(func() {
			_, _ = near.Write(make([]byte, 1000))
			_ = near.CloseWrite()
		})
		closing := make(chan struct{})
		r.writers.Go(func() {
			defer close(closing)
			_ = r.accepter.Close()
		})
		synctest.Wait()
		r.link.Stall(false)
		<-closing
		if _, err := io.ReadAll(far); !errors.Is(err, tunnel.ErrSessionClosed) {
			t.Errorf("read: %v", err)
		}
		_ = far.Close()
		r.end()
	})
}
