// What the suite does not know, on each framing: a link that stalls, streams that are cut, and
// what is left in the books.

package mux_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/mux"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overyamux"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// protocols are the framings that there are.
var protocols = []carrier.Protocol{overyamux.Protocol(), overh2.Protocol()}

// over makes a session of two connected connections.
func over(t testing.TB, p carrier.Protocol, a, b net.Conn, o tunnel.Options) (dialer, accepter *mux.Session) {
	t.Helper()
	return one(t, p, a, true, o), one(t, p, b, false, o)
}

func one(t testing.TB, p carrier.Protocol, c net.Conn, dialed bool, o tunnel.Options) *mux.Session {
	t.Helper()
	s, err := p.Start(carrier.NewPipe(c, tunnel.Peer{Addr: c.RemoteAddr()}), dialed, o)
	if err != nil {
		t.Fatal(err)
	}
	return s.(*mux.Session)
}

func open(t *testing.T, from, to tunnel.Session) (near, far tunnel.Stream) {
	t.Helper()
	near, err := from.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	far, err = to.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

// bothWays runs f in a bubble for each framing, with the streams opened from
// either end of a session over a connection in memory, which can be stalled.
func bothWays(t *testing.T, f func(t *testing.T, link *memnet.Conn, opener, answerer *mux.Session)) {
	t.Helper()
	for _, p := range protocols {
		for _, d := range []struct {
			name string
			swap bool
		}{{"FromDialer", false}, {"FromAccepter", true}} {
			t.Run(p.Name+"/"+d.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
					opener, answerer := over(t, p, a, b, tunnel.Options{})
					t.Cleanup(func() { _ = opener.Close(); _ = answerer.Close() })
					if d.swap {
						opener, answerer = answerer, opener
					}
					f(t, a, opener, answerer)
				})
			})
		}
	}
}

// A link that stalls for an hour ends nothing, whatever was going on.
func TestNoTimerEndsASession(t *testing.T) {
	bothWays(t, func(t *testing.T, link *memnet.Conn, opener, answerer *mux.Session) {
		near, far := open(t, opener, answerer)
		link.Stall(true)
		var wg sync.WaitGroup
		wg.Go(func() { // more than the link and the outbox hold
			if _, err := near.Write(make([]byte, 500<<10)); err != nil {
				t.Errorf("write over the stall: %v", err)
			}
			_ = near.CloseWrite()
		})
		time.Sleep(time.Hour) // the bubble's clock
		link.Stall(false)
		if n, err := io.Copy(io.Discard, far); n != 500<<10 || err != nil {
			t.Errorf("after the stall: %d bytes, %v", n, err)
		}
		wg.Wait()
		_, _ = near.Close(), far.Close()
	})
}

func TestHalfClosedStreamHasNoFuse(t *testing.T) {
	bothWays(t, func(t *testing.T, _ *memnet.Conn, opener, answerer *mux.Session) {
		near, far := open(t, opener, answerer)
		if err := near.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		for range 24 {
			time.Sleep(time.Hour) // the bubble's clock
			if _, err := far.Write([]byte("tick")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(near, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A deadline is kept, even if it is the link that does not move; the bytes that
// were counted arrive when it does, and no others.
func TestWriteDeadlineOnStalledLink(t *testing.T) {
	bothWays(t, func(t *testing.T, link *memnet.Conn, opener, answerer *mux.Session) {
		near, far := open(t, opener, answerer)
		link.Stall(true)
		start := time.Now()
		_ = near.SetWriteDeadline(start.Add(5 * time.Second))
		n, err := near.Write(make([]byte, 1<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 5*time.Second {
			t.Fatalf("wrote %d, %v after %v", n, err, time.Since(start))
		}
		if n == 0 || n > 2*mux.OutCap+64<<10 { // the link holds 64 KiB
			t.Errorf("%d bytes lie in a stalled link", n)
		}
		_ = near.SetWriteDeadline(time.Time{})
		link.Stall(false)
		if _, err := near.Write([]byte("more")); err != nil {
			t.Fatalf("after the stall: %v", err)
		}
		_ = near.CloseWrite()
		if got, err := io.Copy(io.Discard, far); got != int64(n)+4 || err != nil {
			t.Errorf("arrived: %d of %d bytes, %v", got, n+4, err)
		}
	})
}

func TestCloseDoesNotWaitForTheLink(t *testing.T) {
	bothWays(t, func(t *testing.T, link *memnet.Conn, opener, answerer *mux.Session) {
		one, _ := open(t, opener, answerer)
		two, _ := open(t, opener, answerer)
		link.Stall(true)
		start := time.Now()
		if err := errors.Join(one.CloseWrite(), one.Close(), tunnel.Abort(two)); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("streams took %v", d)
		}
		if err := opener.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > mux.LastWords {
			t.Errorf("the session took %v", d)
		}
		link.Stall(false)
	})
}

// A Write that Close has cut short does not look complete.
func TestCutWriteIsReset(t *testing.T) {
	bothWays(t, func(t *testing.T, _ *memnet.Conn, opener, answerer *mux.Session) {
		near, far := open(t, opener, answerer)
		synctest.Wait() // the window is open
		var wg sync.WaitGroup
		wg.Go(func() {
			if n, err := near.Write(make([]byte, 2*mux.Most)); !errors.Is(err, net.ErrClosed) || n != mux.Least+mux.First {
				t.Errorf("wrote %d, %v", n, err)
			}
		})
		synctest.Wait() // the window is full
		if err := near.Close(); err != nil {
			t.Error(err)
		}
		if _, err := io.Copy(io.Discard, far); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("far end: %v", err)
		}
		wg.Wait()
	})
}

// However a stream ends, it is in nobody's books in the end.
func TestNothingIsLeftBehind(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(near, far tunnel.Stream)
	}{
		{"both close", func(near, far tunnel.Stream) { _, _ = near.Close(), far.Close() }},
		{"opener aborts", func(near, far tunnel.Stream) { _, _ = tunnel.Abort(near), far.Close() }},
		{"accepter aborts", func(near, far tunnel.Stream) { _, _ = tunnel.Abort(far), near.Close() }},
		{"both abort", func(near, far tunnel.Stream) { _, _ = tunnel.Abort(far), tunnel.Abort(near) }},
		{"half-closes first", func(near, far tunnel.Stream) {
			_, _, _, _ = near.CloseWrite(), far.CloseWrite(), near.Close(), far.Close()
		}},
		{"unread data", func(near, far tunnel.Stream) {
			_, _ = far.Write(make([]byte, 100<<10))
			_, _ = near.Close(), far.Close()
		}},
		{"peer closes late", func(near, far tunnel.Stream) {
			_ = near.Close()
			time.AfterFunc(time.Minute, func() { _ = far.Close() })
		}},
		{"peer writes on", func(near, far tunnel.Stream) {
			_ = near.Close()
			if n, err := io.Copy(far, endless{}); !errors.Is(err, syscall.ECONNRESET) || n > mux.LingerBytes+mux.Most {
				panic(err)
			}
			_ = far.Close()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, _ *memnet.Conn, opener, answerer *mux.Session) {
				for range 10 {
					near, far := open(t, opener, answerer)
					tc.end(near, far)
				}
				time.Sleep(2 * time.Minute) // the bubble's clock
				if a, b := opener.Books(), answerer.Books(); a != 0 || b != 0 {
					t.Errorf("left at the opener %d, at the accepter %d", a, b)
				}
				open(t, opener, answerer)
			})
		})
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// The peer's end that came before the session's is an end; no end is none.
func TestEndBeforeDeath(t *testing.T) {
	bothWays(t, func(t *testing.T, _ *memnet.Conn, opener, answerer *mux.Session) {
		ended, farEnded := open(t, opener, answerer)
		cut, farCut := open(t, opener, answerer)
		for _, st := range []tunnel.Stream{farEnded, farCut} {
			if _, err := st.Write([]byte("said")); err != nil {
				t.Fatal(err)
			}
		}
		if err := farEnded.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_ = answerer.Close()
		<-opener.Context().Done()
		if got, err := io.ReadAll(ended); err != nil || string(got) != "said" {
			t.Errorf("ended stream: %q, %v", got, err)
		}
		if got, err := io.ReadAll(cut); !errors.Is(err, tunnel.Lost) || string(got) != "said" {
			t.Errorf("cut stream: %q, %v", got, err)
		}
	})
}

// A stream that was opened and given up before anybody accepted it is not
// accepted, and takes no place from others.
func TestGivenUpBeforeAccepted(t *testing.T) {
	bothWays(t, func(t *testing.T, _ *memnet.Conn, opener, answerer *mux.Session) {
		for range 512 {
			st, err := opener.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := tunnel.Abort(st); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		near, far := open(t, opener, answerer)
		if _, err := near.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	})
}

// An Open that was given up leaves no stream behind, here or there.
func TestAbandonedOpen(t *testing.T) {
	bothWays(t, func(t *testing.T, link *memnet.Conn, opener, answerer *mux.Session) {
		filler, _ := open(t, opener, answerer)
		synctest.Wait() // its window is open
		link.Stall(true)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = filler.Write(make([]byte, mux.Least+mux.First)) })
		synctest.Wait()
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := opener.Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("open: %v", err)
			}
			cancel()
		}
		link.Stall(false)
		wg.Wait()
		synctest.Wait()
		if a, b := opener.Live(), answerer.Live(); a != 1 || b != 1 {
			t.Errorf("streams: %d at the opener, %d at the accepter; want the filler's", a, b)
		}
	})
}

// Frames that are written while the connection is busy leave together.
func TestFramesAreJoined(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { framesAreJoined(t, p) })
		})
	}
}

func framesAreJoined(t *testing.T, p carrier.Protocol) {
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	c := &counter{Conn: a}
	dialer, accepter := over(t, p, c, b, tunnel.Options{})
	defer accepter.Close()
	defer dialer.Close()
	near, far := open(t, dialer, accepter)
	filler, _ := open(t, dialer, accepter)
	synctest.Wait()
	a.Stall(true)
	_, _ = filler.Write(make([]byte, 40<<10)) // fits into the outbox
	_, _ = filler.Write(make([]byte, 40<<10)) // and this, while that is on its way
	synctest.Wait()
	before := c.count()
	for range 100 {
		if _, err := near.Write([]byte("key")); err != nil {
			t.Fatal(err)
		}
	}
	a.Stall(false)
	if _, err := io.ReadFull(far, make([]byte, 300)); err != nil {
		t.Fatal(err)
	}
	if n := c.count() - before; n > 2 {
		t.Errorf("100 small writes behind a stall became %d", n)
	}
}

type counter struct {
	net.Conn
	mu sync.Mutex
	n  int
}

func (c *counter) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// What a peer says last is heard, although writing to it has failed before.
func TestLastWords(t *testing.T) {
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	defer b.Close()
	words := errors.New("you are not welcome")
	s := one(t, overh2.Protocol(), &broken{Conn: a, words: words, wrote: make(chan struct{})}, true, tunnel.Options{})
	<-s.Context().Done()
	if err := context.Cause(s.Context()); !errors.Is(err, words) || !errors.Is(err, tunnel.Lost) {
		t.Errorf("cause: %v", err)
	}
}

// A broken connection takes nothing and then has something to say.
type broken struct {
	net.Conn
	words error
	wrote chan struct{}
	once  sync.Once
}

func (c *broken) Write([]byte) (int, error) {
	c.once.Do(func() { close(c.wrote) })
	return 0, syscall.EPIPE
}

func (c *broken) Read([]byte) (int, error) {
	<-c.wrote
	return 0, c.words
}
