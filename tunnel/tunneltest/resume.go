// What a transport must pass whose sessions outlive their connections.

package tunneltest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// Faults are what may befall the network below a session.
type Faults interface {
	// Cut breaks every connection there is, as a reset or a new address does. The
	// next one works.
	Cut()
	// Stall has nothing get through either way, on connections that are there
	// or that are made meanwhile, until Stall(false). Nobody is told.
	Stall(on bool)
}

// MakeResumer makes a session over a network with faults and returns its dialing
// end, its accepting end and the faults. The suite closes both ends.
type MakeResumer func(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session, net Faults)

// RunResume runs what a session that outlives its connections must pass besides
// Run.
func RunResume(t *testing.T, mk MakeResumer) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, r *resumption)
	}{
		{"Cuts", testCuts},
		{"Stalls", testStalls},
		{"Tells", testTells},
		{"OpenWhileParked", testOpenWhileParked},
		{"BoundedWhileParked", testBoundedWhileParked},
		{"Move", testMove},
		{"WindowOver", testWindowOver},
		{"DialerClosesWhileParked", testDialerClosesWhileParked},
		{"AccepterClosesWhileParked", testAccepterClosesWhileParked},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, &resumption{mk: mk}) })
	}
}

// A resumption is a session under test.
type resumption struct {
	mk               MakeResumer
	dialer, accepter tunnel.Session
	net              Faults
}

// soon has a dead connection found soon, so that faults last no longer than they
// must.
const soon = 250 * time.Millisecond

// start makes the session.
func (r *resumption) start(t *testing.T, window, keepalive time.Duration) {
	t.Helper()
	r.dialer, r.accepter, r.net = r.mk(t, tunnel.Options{
		Link: tunnel.LinkOptions{DetachWindow: window, Keepalive: keepalive},
	})
	t.Cleanup(func() {
		r.net.Stall(false) // or closing would take its time
		_, _ = r.dialer.Close(), r.accepter.Close()
	})
	for _, s := range []tunnel.Session{r.dialer, r.accepter} {
		if l := s.Link(); l.Window != window {
			t.Fatalf("state of the link: %+v; want a window of %v", l, window)
		}
	}
}

// park stalls the network until both ends have noticed.
func (r *resumption) park(t *testing.T) {
	t.Helper()
	r.net.Stall(true)
	for _, s := range []tunnel.Session{r.dialer, r.accepter} {
		Eventually(t, "parked", func() bool {
			return !s.Link().Parked.IsZero()
		})
	}
}

// Whatever is cut, every byte arrives once.
func testCuts(t *testing.T, r *resumption) {
	r.start(t, tunnel.DefaultDetachWindow, soon)
	cuts := 0
	const size, most = 8 * 8 << 20, 120 // where replays go by in one piece there are fewer
	r.flows(t, size/8, size/most, func() { cuts++; r.net.Cut() })
	if cuts < 50 {
		t.Errorf("only %d cuts", cuts)
	}
	t.Logf("%d cuts: %+v", cuts, r.dialer.Link())
}

// A silence that is noticed, and one that is not.
func testStalls(t *testing.T, r *resumption) {
	r.start(t, tunnel.DefaultDetachWindow, soon)
	stalls := 0
	const size = 8 * 2 << 20
	r.flows(t, size/8, size/4, func() {
		if stalls++; stalls%2 == 1 {
			r.park(t)
		} else {
			r.net.Stall(true)
		}
		r.net.Stall(false)
	})
	if l := r.dialer.Link(); stalls < 2 || l.Parks == 0 {
		t.Errorf("%d stalls: %+v", stalls, l)
	}
}

// Both ends tell when the session is parked, why, and when it goes on.
func testTells(t *testing.T, r *resumption) {
	r.start(t, tunnel.DefaultDetachWindow, soon)
	began := time.Now()
	ctx := within(t)
	var serving sync.WaitGroup
	serving.Go(func() { serveEcho(ctx, r.accepter) })
	for range 10 { // a session that has been of some use
		if err := echo(ctx, r.dialer); err != nil {
			t.Fatal(err)
		}
	}
	told := make(map[string]chan tunnel.LinkState)
	for name, s := range map[string]tunnel.Session{"dialer": r.dialer, "accepter": r.accepter} {
		c := make(chan tunnel.LinkState, 16) // a path may be found dead more than once
		told[name] = c
		s.Tell(func(l tunnel.LinkState) { c <- l })
	}
	next := func(name string) tunnel.LinkState {
		select {
		case l := <-told[name]:
			return l
		case <-ctx.Done():
			t.Fatalf("%s tells nothing: %+v, %+v", name, r.dialer.Link(), r.accepter.Link())
			return tunnel.LinkState{}
		}
	}
	r.net.Stall(true)
	for name := range told {
		l := next(name)
		for l.Parked.IsZero() { // a busy machine may have found its path dead before
			l = next(name)
		}
		if !errors.Is(l.Cause, tunnel.Dead) || l.Parks == 0 || l.Addr == nil {
			t.Errorf("%s, parked by a silence: %+v", name, l)
		}
		if l.Heard.Before(began.Add(-time.Minute)) || !l.Heard.Before(l.Parked) {
			t.Errorf("%s was last heard %v, and parked %v", name, l.Heard, l.Parked)
		}
	}
	r.net.Stall(false)
	for name := range told {
		for {
			l := next(name)
			if l.Parked.IsZero() != (l.Cause == nil) {
				t.Errorf("%s: %+v", name, l)
			}
			if l.Parked.IsZero() {
				break
			}
		}
	}
	_, _ = r.dialer.Close(), r.accepter.Close()
	finishes(t, "serving", serving.Wait)
}

// A dial that begins while the session is parked waits, and then goes through.
func testOpenWhileParked(t *testing.T, r *resumption) {
	r.start(t, tunnel.DefaultDetachWindow, soon)
	r.park(t)
	ctx := within(t)
	var serving, dialing sync.WaitGroup
	for _, d := range []struct{ from, to tunnel.Session }{{r.dialer, r.accepter}, {r.accepter, r.dialer}} {
		serving.Go(func() { serveEcho(ctx, d.to) })
		dialing.Go(func() {
			if err := echo(ctx, d.from); err != nil {
				t.Errorf("dial: %v", err)
			}
		})
	}
	r.net.Stall(false)
	finishes(t, "dials", dialing.Wait)
	_, _ = r.dialer.Close(), r.accepter.Close()
	finishes(t, "serving", serving.Wait)
}

// serveEcho accepts every dial and gives back what it is sent, until s ends.
func serveEcho(ctx context.Context, s tunnel.Session) {
	_ = ServeRequests(ctx, s, func(_ context.Context, q *tunnel.Request) { // the dialer notices
		if st, err := q.Accept(); err == nil {
			_, _ = io.Copy(st, st) // likewise
			_ = st.Close()
		}
	})
}

// echo dials and says hello.
func echo(ctx context.Context, s tunnel.Session) error {
	st, err := tunnel.Connect(ctx, s, "tcp", "echo:7")
	if err != nil {
		return err
	}
	defer st.Close()
	if _, err = io.WriteString(st, "hello"); err == nil {
		err = st.CloseWrite()
	}
	if err != nil {
		return err
	}
	got, err := io.ReadAll(st)
	if err == nil && string(got) != "hello" {
		return fmt.Errorf("echo of hello: %q", got)
	}
	return err
}

// While a session is parked, deadlines and contexts hold, and nothing of it is
// over when they have passed.
func testBoundedWhileParked(t *testing.T, r *resumption) {
	r.start(t, tunnel.DefaultDetachWindow, soon)
	near, far := streams(t, r.dialer, r.accepter)
	r.park(t)
	for _, st := range []tunnel.Stream{near, far} {
		_ = st.SetDeadline(time.Now().Add(50 * time.Millisecond))
		finishes(t, "read", func() {
			if _, err := st.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read: %v", err)
			}
		})
		finishes(t, "write", func() {
			if _, err := io.Copy(st, pattern{}); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("write: %v", err)
			}
		})
		_ = st.SetDeadline(time.Time{})
	}
	for _, s := range []tunnel.Session{r.dialer, r.accepter} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		finishes(t, "dial", func() {
			if _, err := tunnel.Connect(ctx, s, "tcp", "nobody:1"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("dial: %v", err)
			}
		})
		cancel()
	}
	r.net.Stall(false)
	_, _ = tunnel.Abort(near), tunnel.Abort(far)
	finishes(t, "another stream", func() {
		st, err := r.dialer.Open(within(t))
		if err != nil {
			t.Errorf("open: %v", err)
			return
		}
		_ = st.Close()
	})
}

// A session moves to another connection while it is busy, and is not parked for
// that.
func testMove(t *testing.T, r *resumption) {
	r.start(t, tunnel.DefaultDetachWindow, tunnel.DefaultKeepalive)
	moves := 0
	const size = 8 * 4 << 20
	r.flows(t, size/8, size/8, func() {
		moves++
		if err := r.dialer.Move(within(t)); err != nil {
			t.Errorf("move: %v", err)
		}
	})
	if l := r.dialer.Link(); moves == 0 || l.Parks != 0 {
		t.Errorf("%d moves: %+v", moves, l)
	}
	if err := r.accepter.Move(within(t)); err == nil {
		t.Error("the accepting end has moved")
	}
}

// When the window is over, whatever is blocked on either end fails, with an error
// that says so and is neither an end nor a timeout.
func testWindowOver(t *testing.T, r *resumption) {
	r.start(t, time.Second, soon)
	type end struct {
		name             string
		s                tunnel.Session
		reading, writing tunnel.Stream
	}
	ends := []*end{{name: "dialer", s: r.dialer}, {name: "accepter", s: r.accepter}}
	for i, e := range ends {
		e.reading, _ = streams(t, e.s, ends[1-i].s)
		e.writing, _ = streams(t, e.s, ends[1-i].s)
	}
	r.net.Stall(true)
	var wg sync.WaitGroup
	forever := context.WithoutCancel(t.Context())
	for _, e := range ends {
		for what, call := range map[string]func() error{
			"read":    func() error { _, err := e.reading.Read(make([]byte, 1)); return err },
			"write":   func() error { _, err := io.Copy(e.writing, pattern{}); return err },
			"accept":  func() error { _, err := e.s.Accept(forever); return err },
			"dial":    func() error { _, err := tunnel.Connect(forever, e.s, "tcp", "x:1"); return err },
			"session": func() error { <-e.s.Context().Done(); return context.Cause(e.s.Context()) },
		} {
			wg.Go(func() { checkLost(t, e.name+"'s "+what, call()) })
		}
	}
	finishes(t, "blocked calls", wg.Wait)
	for _, e := range ends {
		_, err := e.s.Open(t.Context())
		checkLost(t, e.name+"'s open afterwards", err)
	}
}

// checkLost says what is wrong with an error about a session whose network is
// gone.
func checkLost(t *testing.T, what string, err error) {
	t.Helper()
	if code := tunnel.CodeOf(err); code != tunnel.Lost && code != tunnel.Dead {
		t.Errorf("%s: code %d of %v", what, code, err)
	}
	if !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		t.Errorf("%s: %v is no broken connection", what, err)
	}
}

func testDialerClosesWhileParked(t *testing.T, r *resumption)   { closesWhileParked(t, r, true) }
func testAccepterClosesWhileParked(t *testing.T, r *resumption) { closesWhileParked(t, r, false) }

// An end that closes while the session is parked does not wait for the network;
// the other end learns of it when that is back, long before the window is over.
func closesWhileParked(t *testing.T, r *resumption, dialer bool) {
	r.start(t, 10*time.Minute, soon)
	closing, other := r.dialer, r.accepter
	if !dialer {
		closing, other = other, closing
	}
	near, far := streams(t, closing, other)
	r.park(t)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = closing.Close() // its context is checked
	}()
	finishes(t, "a stream of the closed end", func() {
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read at the closing end: %v", err)
		}
	})
	r.net.Stall(false)
	finishes(t, "close", func() { <-closed })
	finishes(t, "the other end", func() { <-other.Context().Done() })
	if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("read at the other end: %v", err)
	}
}
