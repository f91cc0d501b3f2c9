// What all sessions of a process may have received that nobody reads, and that it comes
// back.

package qmux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// What windows have had from the session's budget comes back.
func TestBudgetComesBack(t *testing.T) {
	eachLink(t, tunnel.Options{}, func(t *testing.T, l *link) {
		for range 2 {
			near, far := l.bulk(t, 360) // more than there is a first addition for
			for _, st := range far[200:] {
				_, _ = io.CopyN(io.Discard, st, 128<<10)
			}
			for i := range near {
				_, _ = tunnel.Abort(near[i]), far[i].Close()
			}
			idles()
			l.isEmpty(t)
		}
	})
}

// Stalled readers of many sessions have no more unread than the limit, and the others
// go on. When they are gone nothing is left.
func TestIntakeBoundsAllSessions(t *testing.T) {
	const (
		sessions = 8
		streams  = 32
		all      = sessions * streams * initialWindow // 16 MiB
	)
	for name, tt := range map[string]struct{ limit, most int64 }{
		"room for all":                   {2 * all, 2 * all},
		"more streams than are foreseen": {all / 8, all + all/16},
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, tunnel.Options{}, func(t *testing.T, o tunnel.Options) {
				intake := tunnel.NewIntake(tt.limit)
				var links []*link
				var stalled [][2]tunnel.Stream
				for range sessions {
					l := newLink(t, o, intake)
					links = append(links, l)
					near, far := l.bulk(t, streams)
					for i := range near {
						stalled = append(stalled, [2]tunnel.Stream{near[i], far[i]})
					}
				}
				idles() // every window is full
				unread, blocks := 0, 0
				for _, l := range links {
					n, b := l.accepter.unreadBytes()
					unread, blocks = unread+n, blocks+b
				}
				if int64(blocks) != intake.Unread() || unread < all || int64(unread) > tt.most || 4*blocks > 5*unread {
					t.Errorf("%d bytes lie unread in blocks of %d, counted as %d; want %d at most", unread, blocks, intake.Unread(), tt.most)
				}
				if g := intake.Granted(); g > tt.limit/2 {
					t.Errorf("%d bytes are granted, of %d", g, tt.limit/2)
				}
				for _, l := range links {
					l.carries(t, 1<<20)
				}
				for i, st := range stalled {
					_ = st[i%2].Close() // of the reader, or of the writer
					_ = tunnel.Abort(st[1-i%2])
				}
				idles()
				for _, l := range links {
					l.carries(t, 1<<20)
					idles()
					l.isEmpty(t)
				}
				isIdle(t, intake)
				for _, l := range links {
					l.end()
				}
				isIdle(t, intake)
			})
		})
	}
}

// isIdle fails the test if an intake has something on its books.
func isIdle(t *testing.T, intake *tunnel.Intake) {
	t.Helper()
	if intake.Unread() != 0 || intake.Granted() != 0 {
		t.Errorf("in the end: %d unread, %d granted", intake.Unread(), intake.Granted())
	}
}

// What is read after the session is over takes no window.
func TestNoWindowAfterTheEnd(t *testing.T) {
	eachKind(t, tunnel.Options{}, func(t *testing.T, o tunnel.Options) {
		intake := tunnel.NewIntake(0)
		l := newLink(t, o, intake)
		near, far := opened(t, l.dialer, l.accepter)
		l.writers.Go(func() { _, _ = near.Write(make([]byte, 1<<20)) }) // until its session is over, too
		synctest.Wait()
		l.accepter.mu.Lock()
		l.accepter.failLocked(errors.New("over"))
		l.accepter.mu.Unlock()
		if n, _ := io.Copy(io.Discard, far); n < initialWindow/2 {
			t.Fatalf("%d bytes were there to read", n)
		}
		l.end()
		isIdle(t, intake)
	})
}

// While too much lies unread a stream that is read has a small window, and later its
// old one.
func TestIntakeNarrows(t *testing.T) {
	eachKind(t, tunnel.Options{}, func(t *testing.T, o tunnel.Options) {
		intake := tunnel.NewIntake(4 << 20)
		l := newLink(t, o, intake)
		_, far := l.bulk(t, 1) // gets 256 KiB
		hog := newLink(t, o, intake)
		_, stalled := hog.bulk(t, 40)
		idles()
		if !intake.Scarce() {
			t.Fatalf("%d bytes lie unread", intake.Unread())
		}
		skip := func(n int64) (unread int) {
			t.Helper()
			if _, err := io.CopyN(io.Discard, far[0], n); err != nil {
				t.Fatal(err)
			}
			idles()
			unread, _ = l.accepter.unreadBytes()
			return unread
		}
		if n := skip(1 << 20); n == 0 || n > minWindow {
			t.Errorf("%d bytes lie unread, want a window of %d", n, minWindow)
		}
		for _, st := range stalled {
			_ = st.Close()
		}
		idles()
		if n := skip(1 << 20); n < initialWindow/2 {
			t.Errorf("%d bytes lie unread, want a window of %d or more", n, initialWindow)
		}
		_ = far[0].Close()
		l.end()
		hog.end()
		isIdle(t, intake)
	})
}

// Whatever becomes of a stream and its session, what it had is given back: what was
// granted to its window, what lay unread, and what was kept to be sent again.
func TestMemoryComesBack(t *testing.T) {
	for name, end := range map[string]func(l *link, near, far tunnel.Stream){
		"read to the end": func(_ *link, near, far tunnel.Stream) {
			_ = near.CloseWrite()
			_, _ = io.Copy(io.Discard, far)
		},
		"closed by the reader":         func(_ *link, _, far tunnel.Stream) { _ = far.Close() },
		"given up by the reader":       func(_ *link, _, far tunnel.Stream) { _ = tunnel.Abort(far) },
		"given up by the writer":       func(_ *link, near, _ tunnel.Stream) { _ = tunnel.Abort(near) },
		"session closed by the reader": func(l *link, _, _ tunnel.Stream) { _ = l.accepter.Close() },
		"session closed by the writer": func(l *link, _, _ tunnel.Stream) { _ = l.dialer.Close() },
		"connection lost":              func(l *link, _, _ tunnel.Stream) { _ = l.conn.Abort() },
		"connection stalls":            func(l *link, _, _ tunnel.Stream) { l.conn.Stall(true); _ = l.accepter.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, tunnel.Options{}, func(t *testing.T, o tunnel.Options) {
				before := processBudget.used.Load()
				intake := tunnel.NewIntake(0)
				l := newLink(t, o, intake)
				said := make([]byte, 100_000)
				var both [][2]tunnel.Stream
				for range 8 {
					near, far := pair(t, l.dialer, l.accepter)
					both = append(both, [2]tunnel.Stream{near, far})
					l.writers.Go(func() { _, _ = near.Write(said) })
				}
				for range 8 { // these nobody accepts
					other, err := l.dialer.Open(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					l.writers.Go(func() { _, _ = other.Write(make([]byte, 1<<20)) })
				}
				synctest.Wait()
				if intake.Unread() == 0 || intake.Granted() == 0 || processBudget.used.Load() == before {
					t.Fatalf("%d unread, %d granted, %d kept", intake.Unread(), intake.Granted(), processBudget.used.Load()-before)
				}
				var ending sync.WaitGroup
				for _, st := range both {
					ending.Go(func() {
						end(l, st[0], st[1])
						_, _ = st[0].Close(), st[1].Close()
					})
				}
				ending.Wait()
				idles()
				l.end()
				isIdle(t, intake)
				if kept := processBudget.used.Load() - before; kept != 0 {
					t.Errorf("in the end: %d bytes kept", kept)
				}
			})
		})
	}
}

// endings are how a stream may come to its end.
var endings = map[string]func(near, far tunnel.Stream){
	"both close":      func(near, far tunnel.Stream) { _, _ = near.Close(), far.Close() },
	"opener aborts":   func(near, far tunnel.Stream) { _, _ = tunnel.Abort(near), far.Close() },
	"accepter aborts": func(near, far tunnel.Stream) { _, _ = tunnel.Abort(far), near.Close() },
	"both abort":      func(near, far tunnel.Stream) { _, _ = tunnel.Abort(far), tunnel.Abort(near) },
	"closed, aborted": func(near, far tunnel.Stream) { _, _, _ = near.Close(), tunnel.Abort(near), far.Close() },
	"half-closes": func(near, far tunnel.Stream) {
		_, _, _, _ = near.CloseWrite(), far.CloseWrite(), near.Close(), far.Close()
	},
	"peer closes late": func(near, far tunnel.Stream) {
		_ = near.Close()
		time.AfterFunc(time.Minute, func() { _ = far.Close() })
	},
	"unread data": func(near, far tunnel.Stream) {
		_, _ = far.Write(make([]byte, 20<<10))
		_, _ = near.Close(), far.Close()
	},
	"unread data, reset": func(near, far tunnel.Stream) {
		_, _ = far.Write(make([]byte, 20<<10))
		_, _ = near.Close(), tunnel.Abort(far)
	},
	"read to the end": func(near, far tunnel.Stream) {
		_, _ = near.Write(make([]byte, 100))
		_ = near.CloseWrite()
		_, _ = io.Copy(far, far)
		_ = far.Close()
		_, _ = io.Copy(io.Discard, near)
		_ = near.Close()
	},
	"peer writes on": func(near, far tunnel.Stream) {
		_ = near.Close()
		if n, err := io.Copy(far, zeros{}); !errors.Is(err, syscall.EPIPE) || n > extraWindow+initialWindow+2*maxUnsent {
			panic(err)
		}
		_ = far.Close()
	},
}

// However many streams end, and however, nothing of them is left behind: neither in the
// books of either end nor a goroutine, which goleak looks for.
func TestNothingIsLeftBehind(t *testing.T) {
	for name, end := range endings {
		t.Run(name, func(t *testing.T) { endsMany(t, 100, func(int) func(near, far tunnel.Stream) { return end }) })
	}
	names := slices.Sorted(maps.Keys(endings))
	t.Run("all", func(t *testing.T) {
		endsMany(t, 3_000, func(i int) func(near, far tunnel.Stream) { return endings[names[i%len(names)]] })
	})
}

// endsMany opens n streams, from either end, and has them come to their ends.
func endsMany(t *testing.T, n int, end func(i int) func(near, far tunnel.Stream)) {
	t.Helper()
	eachLink(t, tunnel.Options{}, func(t *testing.T, l *link) {
		for i := range n {
			from, to := l.dialer, l.accepter
			if i%2 == 1 {
				from, to = to, from
			}
			near, far := pair(t, from, to)
			end(i)(near, far)
		}
		time.Sleep(2 * time.Minute) // the bubble's clock
		synctest.Wait()
		l.isEmpty(t)
		l.carries(t, 1000)
	})
}

// Dials that are given up before anybody answers leave nothing behind either: 5,000 of
// them over each link, and as many that are not even accepted.
func TestCancelledDials(t *testing.T) {
	const dialers, each = 50, 100
	for _, accepted := range []bool{false, true} {
		t.Run(fmt.Sprintf("accepted=%t", accepted), func(t *testing.T) {
			eachLink(t, tunnel.Options{}, func(t *testing.T, l *link) {
				ctx, cancel := context.WithCancel(t.Context())
				if accepted {
					l.writers.Go(func() { l.answersNobody(ctx) })
				}
				var dialing sync.WaitGroup
				for range dialers {
					dialing.Go(func() {
						for range each {
							ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
							if _, err := tunnel.Connect(ctx, l.dialer, "tcp", "target:1"); tunnel.CodeOf(err) != tunnel.Timeout {
								t.Errorf("dial: %v", err)
							}
							cancel()
						}
					})
				}
				dialing.Wait()
				idles()
				l.isEmpty(t)
				cancel()
			})
		})
	}
}

// answersNobody accepts streams, and reads what they say.
func (l *link) answersNobody(ctx context.Context) {
	for {
		st, err := l.accepter.Accept(ctx)
		if err != nil {
			return
		}
		l.writers.Go(func() {
			_, _ = io.Copy(io.Discard, st)
			_ = st.Close()
		})
	}
}

// A stream waits once to be acknowledged, also if its data comes on two connections in turn before
// the acknowledgement leaves: a peer that does not read may put that off.
func TestAcknowledgementsWaitOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		x, y := n.hand(t), n.hand(t)
		id, secret, _ := x.begin(usual)
		a := <-n.accepted
		y.greet(&joining{kind: kindJoin, id: id, secret: secret, attempt: 1, insteadOf: insteadOfNone})
		if f := y.hear(); f.kind != frameSession {
			t.Fatalf("the answer is %+v", f)
		}
		var frames [][]byte
		for i := range uint64(200) {
			frames = append(frames, streamFrame(i<<2, 0, "x", false))
		}
		for i := range 100 {
			[]*handmade{x, y}[i%2].say(frames...)
			synctest.Wait()
		}
		a.mu.Lock()
		waiting := 0
		for _, c := range a.conns {
			waiting += len(c.controlStreams)
		}
		a.mu.Unlock()
		if waiting > len(frames) {
			t.Errorf("%d acknowledgements of %d streams wait", waiting, len(frames))
		}
		n.close(t, a)
		time.Sleep(2 * lingerTimeout) // the bubble's clock
	})
}

// Streams that were busy once and are idle leave the streams of other sessions a window.
func TestIdleStreamsLeaveWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{Intake: tunnel.NewIntake(64 << 20)})
		d, a := n.pair(t, tunnel.Options{Intake: tunnel.NewIntake(0)})
		n.set(func() { n.identity = "system:node:b" })
		d2, a2 := n.pair(t, tunnel.Options{Intake: tunnel.NewIntake(0)})
		busy := func(d, a *Session) (window int) {
			near, far := opened(t, d, a)
			go func() { _, _ = io.CopyN(near, zeros{}, 64<<20) }() // the reader notices
			if _, err := io.CopyN(io.Discard, far, 64<<20); err != nil {
				t.Fatal(err)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			return far.(*stream).in.window.size
		}
		first := busy(d, a)
		for range 7 {
			busy(d, a)
		}
		if got := busy(d2, a2); first < fairWindow || got <= initialWindow+extraWindow {
			t.Errorf("the first stream has a window of %d bytes, one of another session %d", first, got)
		}
		n.close(t, d, a, d2, a2)
	})
}
