// Faults: what a session outlives, and what it does not.

package overquic

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// quick is a keepalive at which a dead path is found within a second.
var quick = tunnel.LinkOptions{Keepalive: 700 * time.Millisecond}

// relayed makes a session through a relay.
func relayed(t testing.TB, o tunnel.Options) (dialer, accepter *session, r *relay) {
	t.Helper()
	o.TLS = tunneltest.TLS(t)
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r = newRelay(t, pc.LocalAddr())
	l, err := ListenPacket(pc, o)
	if err != nil {
		t.Fatal(err)
	}
	accepted := tunneltest.Serve(t, l)
	s, err := Dial(t.Context(), r.addr(), o)
	if err != nil {
		t.Fatal(err)
	}
	dialer, accepter = s.(*session), (<-accepted).(*session)
	t.Cleanup(func() {
		r.hole(false)
		_, _ = dialer.Close(), accepter.Close()
	})
	return dialer, accepter, r
}

// await waits until f is true.
func await(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// prepared waits until a session has somewhere to go when its path dies.
func prepared(t testing.TB, s *session) {
	t.Helper()
	await(t, "another path", func() bool {
		s.mooring.mu.Lock()
		defer s.mooring.mu.Unlock()
		return s.mooring.paths[1] != nil
	})
}

func TestResume(t *testing.T) {
	t.Parallel()
	tunneltest.RunResume(t, func(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session, faults tunneltest.Faults) {
		return relayed(t, o)
	})
}

func parked(s *session) bool { return !s.Link().Parked.IsZero() }

// A flow goes one way through a session until it is told to stop, and both ends
// hash it.
type flow struct {
	wg         sync.WaitGroup
	stop       chan struct{}
	mu         sync.Mutex
	read       int64
	sent, seen [sha256.Size]byte
	err        error
}

func newFlow(t testing.TB, from, to tunnel.Session, seed uint64) *flow {
	t.Helper()
	near, far := open(t, from, to)
	f := &flow{stop: make(chan struct{})}
	f.wg.Go(func() {
		h, random := sha256.New(), rand.NewChaCha8([32]byte{byte(seed)})
		buf := make([]byte, 32<<10)
		for {
			select {
			case <-f.stop:
				_ = near.CloseWrite() // the reader notices
				f.sent = [sha256.Size]byte(h.Sum(nil))
				return
			default:
			}
			_, _ = random.Read(buf) // never fails
			_, _ = h.Write(buf)     // as above
			if _, err := near.Write(buf); err != nil {
				f.fail(fmt.Errorf("write: %w", err))
				return
			}
		}
	})
	f.wg.Go(func() {
		h, buf := sha256.New(), make([]byte, 32<<10)
		for {
			n, err := far.Read(buf)
			_, _ = h.Write(buf[:n])
			f.mu.Lock()
			f.read += int64(n)
			f.mu.Unlock()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					f.fail(fmt.Errorf("read: %w", err))
				}
				f.seen = [sha256.Size]byte(h.Sum(nil))
				return
			}
		}
	})
	return f
}

func (f *flow) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = errors.Join(f.err, err)
}

func (f *flow) count() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read
}

// goesOn waits until n more bytes have arrived.
func (f *flow) goesOn(t testing.TB, n int64) {
	t.Helper()
	start := f.count()
	await(t, "flow", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.read >= start+n || f.err != nil
	})
}

// end ends the flow and compares.
func (f *flow) end(t testing.TB) {
	t.Helper()
	close(f.stop)
	f.wg.Wait()
	switch {
	case f.err != nil:
		t.Error(f.err)
	case f.sent != f.seen:
		t.Errorf("what was read is not what was written, in %d bytes", f.read)
	}
}

// dials checks that a new stream works in either direction.
func dials(t *testing.T, a, b tunnel.Session) {
	t.Helper()
	for _, d := range []struct{ from, to tunnel.Session }{{a, b}, {b, a}} {
		near, far := open(t, d.from, d.to)
		if _, err := near.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		_, _ = near.Close(), far.Close()
	}
}

// A NAT gives the connection another port while streams run, whichever end
// writes; they go on and new ones can be opened.
func TestRebinding(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"upload", "download"} {
		t.Run(way, func(t *testing.T) {
			a, b, r := relayed(t, tunnel.Options{Link: quick})
			from, to := tunnel.Session(a), tunnel.Session(b)
			if way == "download" {
				from, to = b, a
			}
			f := newFlow(t, from, to, 1)
			for range 3 {
				f.goesOn(t, 1<<20)
				before := b.Link().Addr.String()
				r.rebind()
				f.goesOn(t, 1<<20)
				dials(t, a, b)
				if after := b.Link().Addr.String(); after == before {
					t.Errorf("the server still sends to %s", after)
				}
			}
			f.end(t)
		})
	}
}

// A path that is dead for longer than it takes to notice parks both ends; when it
// is back, streams go on.
func TestBlackhole(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		ways []int
	}{{"both ways", []int{up, down}}, {"up", []int{up}}, {"down", []int{down}}} {
		t.Run(tc.name, func(t *testing.T) {
			a, b, r := relayed(t, tunnel.Options{Link: quick})
			prepared(t, a)
			flows := []*flow{newFlow(t, a, b, 1), newFlow(t, b, a, 2)}
			for range 2 {
				for _, f := range flows {
					f.goesOn(t, 256<<10)
				}
				parks := a.Link().Parks
				for _, way := range tc.ways {
					r.lose(way, func([]byte) bool { return true })
				}
				await(t, "dialing end's parking", func() bool { return parked(a) })
				await(t, "accepting end's parking", func() bool { return parked(b) })
				r.hole(false)
				await(t, "the path's return", func() bool { return !parked(a) && !parked(b) })
				if l := a.Link(); l.Parks <= parks || l.Resumes == 0 {
					t.Errorf("after a blackhole: %+v", l)
				}
			}
			for _, f := range flows {
				f.goesOn(t, 256<<10)
				f.end(t)
			}
			dials(t, a, b)
		})
	}
}

// An idle session notices as well, and is no worse for it.
func TestIdleBlackhole(t *testing.T) {
	t.Parallel()
	a, b, r := relayed(t, tunnel.Options{Link: quick})
	near, far := open(t, a, b)
	prepared(t, a)
	r.hole(true)
	await(t, "parking", func() bool { return parked(a) && parked(b) })
	r.hole(false)
	await(t, "the path's return", func() bool { return !parked(a) && !parked(b) })
	for _, d := range []struct{ from, to tunnel.Stream }{{near, far}, {far, near}} {
		if _, err := d.from.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(d.to, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// Past the detach window every call fails on both ends, with the same error.
func TestWindow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		link tunnel.LinkOptions
	}{
		{"short", tunnel.LinkOptions{Keepalive: 300 * time.Millisecond, DetachWindow: 500 * time.Millisecond}},
		{"none", tunnel.LinkOptions{Keepalive: 300 * time.Millisecond, DetachWindow: -1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b, r := relayed(t, tunnel.Options{Link: tc.link})
			gone := func(what string, err error) {
				var ne net.Error
				if !errors.Is(err, syscall.ECONNRESET) || !errors.Is(err, tunnel.Dead) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
					errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &ne) && ne.Timeout() {
					t.Errorf("%s: %v", what, err)
				}
			}
			var wg sync.WaitGroup
			reading, far := open(t, a, b)
			writing, farWriting := open(t, a, b)
			for _, st := range []tunnel.Stream{reading, far} {
				wg.Go(func() {
					_, err := st.Read(make([]byte, 1))
					gone("read", err)
				})
			}
			for _, st := range []tunnel.Stream{writing, farWriting} {
				wg.Go(func() {
					var err error
					for err == nil {
						_, err = st.Write(make([]byte, 64<<10))
					}
					gone("write", err)
				})
			}
			for _, s := range []*session{a, b} {
				wg.Go(func() {
					_, err := s.Accept(context.WithoutCancel(t.Context()))
					gone("accept", err)
				})
				wg.Go(func() {
					<-s.Context().Done()
					gone("session", context.Cause(s.Context()))
				})
			}
			r.hole(true)
			wg.Wait()
			if w := a.Link().Window; tc.link.DetachWindow < 0 && w != 0 {
				t.Errorf("window %v", w)
			}
		})
	}
}

// The shorter detach window and the longer keepalive hold.
func TestHello(t *testing.T) {
	a, b, _ := relayed(t, tunnel.Options{Link: quick})
	ctx := t.Context()
	for _, s := range []*session{a, b} {
		select {
		case s.words <- word{kind: kindHello, window: time.Second, interval: time.Minute}:
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		await(t, "window", func() bool { return s.Link().Window == time.Second })
	}
	await(t, "interval", func() bool { return time.Duration(a.promise.Load()) == time.Minute })
}

// Move goes over to another socket while streams run, again and again.
func TestMove(t *testing.T) {
	t.Parallel()
	a, b, r := relayed(t, tunnel.Options{Link: quick})
	flows := []*flow{newFlow(t, a, b, 1), newFlow(t, b, a, 2)}
	if err := b.Move(t.Context()); err == nil {
		t.Error("the accepting end moved")
	}
	for i := range 5 {
		for _, f := range flows {
			f.goesOn(t, 256<<10)
		}
		before, local := b.Link().Addr.String(), a.localAddr().String()
		if err := a.Move(t.Context()); err != nil {
			t.Fatalf("move %d: %v", i, err)
		}
		if a.localAddr().String() == local {
			t.Errorf("move %d: still at %s", i, local)
		}
		await(t, "the server's following", func() bool { return b.Link().Addr.String() != before })
	}
	// With nowhere to go it stays where it is; when the path is dead it goes
	// until it arrives.
	r.hole(true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := a.Move(ctx); err == nil {
		t.Error("moved through a hole")
	}
	await(t, "parking", func() bool { return parked(a) })
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Move(t.Context()); err != nil {
			t.Errorf("move while parked: %v", err)
		}
	})
	r.hole(false)
	wg.Wait()
	if parked(a) {
		t.Error("moved and still parked")
	}
	for _, f := range flows {
		f.goesOn(t, 256<<10)
		f.end(t)
	}
	dials(t, a, b)
	if l := a.Link(); l.Addr.String() != r.addr() {
		t.Errorf("the server is at %v", l.Addr)
	}
}

// Fifty faults of all kinds, and every byte once.
func TestFaults(t *testing.T) {
	t.Parallel()
	faults := 50
	if testing.Short() {
		faults = 10
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	a, b, r := relayed(t, tunnel.Options{Link: quick})
	flows := []*flow{newFlow(t, a, b, 1), newFlow(t, b, a, 2)}
	all := func([]byte) bool { return true }
	for i := range faults {
		for _, f := range flows {
			f.goesOn(t, 64<<10)
		}
		kind := random.IntN(6)
		switch kind {
		case 0:
			r.rebind()
		case 1:
			r.hole(true)
		case 2, 3:
			r.lose(kind-2, all)
		case 4:
			var n int
			every := 3 + random.IntN(10)
			r.lose(up, func([]byte) bool { n++; return n%every == 0 })
			r.lose(down, func(b []byte) bool { return len(b)%every == 0 })
		case 5:
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if err := a.Move(ctx); err != nil {
				t.Errorf("fault %d: %v", i, err)
			}
			cancel()
		}
		// Some faults are over before anybody notices, and some are not.
		pause := time.NewTimer(time.Duration(random.IntN(1000)) * time.Millisecond)
		<-pause.C
		r.hole(false)
	}
	for _, f := range flows {
		f.goesOn(t, 64<<10)
		f.end(t)
	}
	dials(t, a, b)
	t.Logf("dialing end: %+v", a.Link())
}
