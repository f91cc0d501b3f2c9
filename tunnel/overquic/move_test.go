package overquic

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A flow goes one way through a session until it is told to stop, and both ends hash it.
type flow struct {
	wg   sync.WaitGroup
	stop chan struct{}
	read atomic.Int64
	sums [2][]byte
}

func newFlow(t *testing.T, from, to tunnel.Session, seed byte) *flow {
	t.Helper()
	near, far := open(t, from, to)
	f := &flow{stop: make(chan struct{})}
	f.wg.Go(func() {
		h, random, buf := sha256.New(), rand.NewChaCha8([32]byte{seed}), make([]byte, 32<<10)
		for {
			select {
			case <-f.stop:
				_ = near.CloseWrite() // the reader notices
				f.sums[0] = h.Sum(nil)
				return
			default:
			}
			_, _ = random.Read(buf) // never fails
			_, _ = h.Write(buf)     // as above
			if _, err := near.Write(buf); err != nil {
				t.Errorf("write: %v", err)
				return
			}
		}
	})
	f.wg.Go(func() {
		h, buf := sha256.New(), make([]byte, 32<<10)
		for {
			n, err := far.Read(buf)
			_, _ = h.Write(buf[:n])
			f.read.Add(int64(n))
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("read: %v", err)
				}
				f.sums[1] = h.Sum(nil)
				return
			}
		}
	})
	return f
}

// goesOn waits until n more bytes have arrived.
func (f *flow) goesOn(t *testing.T, n int64) {
	t.Helper()
	start := f.read.Load()
	await(t, "flow", func() bool { return f.read.Load() >= start+n || t.Failed() })
}

// end ends the flow and compares.
func (f *flow) end(t *testing.T) {
	t.Helper()
	close(f.stop)
	if f.wg.Wait(); !bytes.Equal(f.sums[0], f.sums[1]) {
		t.Errorf("what was read is not what was written, in %d bytes", f.read.Load())
	}
}

// says checks that a new stream works in either direction.
func says(t *testing.T, a, b tunnel.Session) {
	t.Helper()
	for _, d := range [][2]tunnel.Session{{a, b}, {b, a}} {
		near, far := open(t, d[0], d[1])
		_, _ = near.Close(), far.Close()
	}
}

// Move goes over to another socket while streams run, again and again.
func TestMove(t *testing.T) {
	a, b := pair(t, tunnel.Options{})
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
	for _, f := range flows {
		f.goesOn(t, 256<<10)
		f.end(t)
	}
	says(t, a, b)
}

// The server follows a session that has nothing to say.
func TestMoveIdle(t *testing.T) {
	a, b := pair(t, tunnel.Options{})
	near, far := open(t, a, b)
	for range 3 {
		before := b.Link().Addr.String()
		if err := a.Move(t.Context()); err != nil {
			t.Fatal(err)
		}
		await(t, "the server's following", func() bool { return b.Link().Addr.String() != before })
		if _, err := far.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := near.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// A Move whose path does not answer leaves the session on the old one, and the next may
// go through. One that is under way when the session ends is over as well.
func TestMoveNowhere(t *testing.T) {
	a, b, r := relayed(t, tunnel.Options{})
	f := newFlow(t, b, a, 1)
	f.goesOn(t, 64<<10)
	local := a.localAddr().String()
	r.set(false, true)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if err := a.Move(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("moved to where nobody answers: %v", err)
		}
		cancel()
		if a.localAddr().String() != local {
			t.Error("the old path is not used any more")
		}
		f.goesOn(t, 256<<10)
	}
	r.set(false, false)
	if err := a.Move(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.goesOn(t, 256<<10)
	f.end(t)
	says(t, a, b)

	r.set(true, false)
	moved := make(chan error, 1)
	go func() { moved <- a.Move(context.WithoutCancel(t.Context())) }()
	_ = a.Close()
	if err := <-moved; !errors.Is(err, tunnel.ErrSessionClosed) {
		t.Errorf("a session that was closed moved: %v", err)
	}
}

// A NAT gives the connection another port while streams run, whichever end writes; they
// go on and new ones can be opened.
func TestRebinding(t *testing.T) {
	for _, way := range []string{"upload", "download"} {
		t.Run(way, func(t *testing.T) {
			// A download goes on when the client has something to say: at the latest when it
			// asks for a sign of life.
			a, b, r := relayed(t, tunnel.Options{Link: tunnel.LinkOptions{Keepalive: time.Second}})
			from, to := tunnel.Session(a), tunnel.Session(b)
			if way == "download" {
				from, to = b, a
			}
			f := newFlow(t, from, to, 1)
			for range 3 {
				f.goesOn(t, 512<<10)
				before := b.Link().Addr.String()
				r.rebind()
				await(t, "the server's following", func() bool { return b.Link().Addr.String() != before })
				f.goesOn(t, 512<<10)
				says(t, a, b)
			}
			f.end(t)
		})
	}
}

// By default a dead peer is found within 20 s, as the library counts.
func TestSilence(t *testing.T) {
	c := config(tunnel.Options{}, 0)
	if asked := min(c.KeepAlivePeriod, c.MaxIdleTimeout/2); asked+c.MaxIdleTimeout > 20*time.Second {
		t.Errorf("asked after %v, and given up %v later", asked, c.MaxIdleTimeout)
	}
}

// When the path is dead every call fails on both ends, with the same error.
func TestDeadPath(t *testing.T) {
	t.Parallel()
	a, b, r := relayed(t, tunnel.Options{Link: tunnel.LinkOptions{Keepalive: 100 * time.Millisecond}})
	var wg sync.WaitGroup
	gone := func(what string, f func() error) {
		wg.Go(func() {
			err := f()
			var op *net.OpError
			if !errors.Is(err, tunnel.Dead) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
				errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &op) && op.Timeout() {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	near, far := open(t, a, b)
	for _, st := range []tunnel.Stream{near, far} {
		gone("read", func() error {
			for {
				if _, err := st.Read(make([]byte, 64<<10)); err != nil {
					return err
				}
			}
		})
		gone("write", func() error {
			for {
				if _, err := st.Write(make([]byte, maxStream)); err != nil {
					return err
				}
			}
		})
	}
	r.set(true, false)
	for _, s := range []*session{a, b} {
		gone("accept", func() error {
			_, err := s.Accept(context.WithoutCancel(t.Context()))
			return err
		})
		gone("session", func() error {
			<-s.Context().Done()
			return context.Cause(s.Context())
		})
	}
	wg.Wait()
	if err := a.Move(t.Context()); !errors.Is(err, tunnel.Dead) {
		t.Errorf("move: %v", err)
	}
	if l := a.Link(); l.Window != 0 || l.Received == 0 || l.Heard.IsZero() {
		t.Errorf("%+v", l)
	}
}
