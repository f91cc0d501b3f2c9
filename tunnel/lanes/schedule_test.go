package lanes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/qmux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A script is what one direction does, and the model of what must come of it: its
// bytes, once each and in order, and then its end.
type script struct {
	seed   uint64
	size   int64
	cut    bool // the stream is given up in the midst of it
	pauses bool
}

// write says size bytes in pieces of any size, now and then after a pause in which
// the direction may come home.
func (s *script) write(st tunnel.Stream) error {
	random := rand.New(rand.NewPCG(s.seed, 2))
	for at := int64(0); at < s.size; {
		piece := min(s.size-at, 1+random.Int64N(1<<uint(random.IntN(17))))
		if s.cut && at > s.size/2 {
			return tunnel.Abort(st)
		}
		if s.pauses && random.IntN(8) == 0 {
			time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
		}
		if err := say(st, at, piece); err != nil {
			return fmt.Errorf("write at %d: %w", at, err)
		}
		at += piece
	}
	return st.CloseWrite()
}

// read checks them, as fast or as slowly as it likes.
func (s *script) read(st tunnel.Stream) error {
	random := rand.New(rand.NewPCG(s.seed, 3))
	for at := int64(0); at < s.size; {
		piece := min(s.size-at, 1+random.Int64N(64<<10))
		if s.pauses && random.IntN(8) == 0 {
			time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
		}
		if err := expect(st, at, piece); err != nil {
			if s.cut && !errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		at += piece
	}
	if s.cut {
		return errors.New("a direction that was given up came to its end")
	}
	return isEnd(st)
}

// runScripts has two ends talk over n streams by random scripts.
func runScripts(t *testing.T, seed uint64, dialer, accepter *Session, n int, size int64, faults bool) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	var wg sync.WaitGroup
	for i := range n {
		from, to := dialer, accepter
		if random.IntN(2) == 0 {
			from, to = to, from
		}
		near, far := connect(t, from, to)
		there, back := newScript(random, size, faults), newScript(random, size, faults)
		if there.cut || back.cut { // either ends both
			there.cut, back.cut = true, true
		}
		wg.Go(func() {
			err := both(
				func() error {
					return both(func() error { return there.write(near) }, func() error { return back.read(near) })
				},
				func() error {
					return both(func() error { return back.write(far) }, func() error { return there.read(far) })
				})
			if err != nil && !there.cut {
				t.Errorf("seed %d, stream %d: %v", seed, i, err)
			}
			_, _ = near.Close(), far.Close()
		})
	}
	wg.Wait()
}

func newScript(random *rand.Rand, size int64, faults bool) *script {
	return &script{
		seed:   random.Uint64(),
		size:   random.Int64N(size) + 1,
		cut:    faults && random.IntN(8) == 0,
		pauses: random.IntN(2) == 0,
	}
}

// Streams of any size, in any pieces, moving, coming home, ending and given up at
// any time, over lanes that come and go: every byte arrives once and in order.
func TestSchedules(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			r := newRoad(t, eager(), 2+int(seed%3))
			runScripts(t, seed, r.dialer, r.accepter, 12, 200<<10, true)
			time.Sleep(time.Minute)
			if a, b := r.dialer.legs(), r.accepter.legs(); a != 0 || b != 0 {
				t.Errorf("seed %d: %d and %d legs are left", seed, a, b)
			}
			if a, b := r.dialer.Lanes(), r.accepter.Lanes(); a != 1 || b != 1 {
				t.Errorf("seed %d: %d and %d lanes are left", seed, a, b)
			}
			r.dialer.mu.Lock()
			for n := range r.dialer.streams.known {
				t.Errorf("seed %d: stream %d is still known", seed, n)
			}
			r.dialer.mu.Unlock()
			_, _ = r.dialer.Close(), r.accepter.Close()
		})
	}
}

// The same over real connections.
func TestSchedulesOverQMux(t *testing.T) {
	for seed := range uint64(2) {
		d, a := pair(t, overLoopback(qmux.Transport()), tunnel.Options{}, Config{tune: eager()})
		runScripts(t, seed, d, a, 8, 1<<20, true)
		_, _ = d.Close(), a.Close()
	}
}

// A session with lanes outlives its connections as its lanes do. All lanes go
// through one relay.
func TestResumes(t *testing.T) {
	tunneltest.RunResume(t, func(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session, net tunneltest.Faults) {
		tr := qmux.Transport()
		o.Link.Keepalive *= 4 // several lanes are busy at once: none may seem dead
		addr, accepted := tunneltest.ListenTCP(t, tr, o)
		relay := tunneltest.NewRelay(t, addr)
		var mu sync.Mutex // held by whoever dials, so that both ends of a session meet
		mk := func(ctx context.Context, t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session, err error) {
			mu.Lock()
			defer mu.Unlock()
			return meet(ctx, t, tr, relay.Addr(), o, accepted)
		}
		d, a := pair(t, mk, o, Config{})
		return d, a, relay
	})
}
