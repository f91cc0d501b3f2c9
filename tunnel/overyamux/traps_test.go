package overyamux

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// inBubble are the tests that need synctest's clock. Yamux keeps its timers in a
// pool of the package's, which must not be shared between bubbles: so each of
// these has a process of its own.
var inBubble = map[string]func(*testing.T){
	"NoTimerEndsASession":        noTimerEndsASession,
	"HalfClosedStreamHasNoFuse":  halfClosedStreamHasNoFuse,
	"WriteDeadlineOnStalledLink": writeDeadlineOnStalledLink,
	"CloseDoesNotWaitForTheLink": closeDoesNotWaitForTheLink,
	"EndBeforeDeath":             endBeforeDeath,
	"BacklogIsBounded":           backlogIsBounded,
	"AbandonedOpen":              abandonedOpen,
	"FramesAreJoined":            framesAreJoined,
	"NothingIsLeftBehind":        nothingIsLeftBehind,
}

const bubble = "OVERYAMUX_BUBBLE"

func TestTraps(t *testing.T) {
	if name := os.Getenv(bubble); name != "" {
		synctest.Test(t, inBubble[name])
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name := range inBubble {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestTraps$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), bubble+"="+name, "GORACE=atexit_sleep_ms=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestConfigIsValid(t *testing.T) {
	if err := yamux.VerifyConfig(config()); err != nil {
		t.Error(err)
	}
}

// linked is a session over a connection in memory, which can be stalled.
func linked(t *testing.T) (link *memnet.Conn, dialer, accepter *session) {
	t.Helper()
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	dialer, accepter = overConns(t, a, b, tunnel.Options{})
	t.Cleanup(func() { _ = dialer.Close(); _ = accepter.Close() })
	return a, dialer, accepter
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

// StreamOpenTimeout, ConnectionWriteTimeout: nothing of yamux's ends a session
// whose link stalls for an hour, whatever was going on.
func noTimerEndsASession(t *testing.T) {
	link, dialer, accepter := linked(t)
	near, far := open(t, dialer, accepter)
	link.Stall(true)
	var wg sync.WaitGroup
	wg.Go(func() { // more than the link holds
		if _, err := near.Write(make([]byte, 200<<10)); err != nil {
			t.Errorf("write over the stall: %v", err)
		}
		_ = near.CloseWrite()
	})
	wg.Go(func() {
		st, err := dialer.Open(t.Context())
		if err != nil {
			t.Errorf("open over the stall: %v", err)
			return
		}
		_ = st.Close()
	})
	time.Sleep(time.Hour) // the bubble's clock
	link.Stall(false)
	if n, err := io.Copy(io.Discard, far); n != 200<<10 || err != nil {
		t.Errorf("after the stall: %d bytes, %v", n, err)
	}
	wg.Wait()
	_, _ = near.Close(), far.Close()
	time.Sleep(time.Minute) // the streams' lingering
}

// StreamCloseTimeout: a half-closed stream has no fuse.
func halfClosedStreamHasNoFuse(t *testing.T) {
	_, dialer, accepter := linked(t)
	near, far := open(t, dialer, accepter)
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
	_, _ = near.Close(), far.Close()
}

// A deadline that was set before a write is kept, even if it is the link that
// does not move; the bytes that were taken arrive when it does.
func writeDeadlineOnStalledLink(t *testing.T) {
	link, dialer, accepter := linked(t)
	near, far := open(t, dialer, accepter)
	link.Stall(true)
	start := time.Now()
	_ = near.SetWriteDeadline(start.Add(5 * time.Second))
	n, err := near.Write(make([]byte, 1<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 5*time.Second {
		t.Fatalf("wrote %d, %v after %v", n, err, time.Since(start))
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
	_, _ = near.Close(), far.Close()
}

func closeDoesNotWaitForTheLink(t *testing.T) {
	link, dialer, accepter := linked(t)
	one, _ := open(t, dialer, accepter)
	two, _ := open(t, dialer, accepter)
	link.Stall(true)
	start := time.Now()
	if err := errors.Join(one.CloseWrite(), one.Close(), tunnel.Abort(two)); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > 0 {
		t.Errorf("took %v", d)
	}
	link.Stall(false)
}

// Close is a half-close, and there is no reset: a closed stream whose peer stays
// is given up after a while, and a reset one at once, and neither is left in
// yamux's or the wire's books at either end.
func nothingIsLeftBehind(t *testing.T) {
	books := func(s *session) (n int) {
		s.wire.mu.Lock()
		defer s.wire.mu.Unlock()
		return len(s.wire.ended) + s.mux.NumStreams() + len(s.ours) + len(s.theirs)
	}
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
			if _, err := io.Copy(far, endless{}); !errors.Is(err, syscall.ECONNRESET) {
				panic(err)
			}
			_ = far.Close()
		}},
	} {
		_, dialer, accepter := linked(t)
		for range 10 {
			near, far := open(t, dialer, accepter)
			tc.end(near, far)
		}
		time.Sleep(2 * time.Minute) // the bubble's clock
		if a, b := books(dialer), books(accepter); a != 0 || b != 0 {
			t.Errorf("%s: left at the opener %d, at the accepter %d", tc.name, a, b)
		}
		// No frame was misplaced.
		near, far := open(t, dialer, accepter)
		if _, err := near.Write([]byte("x")); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// The peer's end that came before the session's is an end; no end is none.
func endBeforeDeath(t *testing.T) {
	_, dialer, accepter := linked(t)
	ended, farEnded := open(t, dialer, accepter)
	cut, farCut := open(t, dialer, accepter)
	for _, st := range []tunnel.Stream{farEnded, farCut} {
		if _, err := st.Write([]byte("said")); err != nil {
			t.Fatal(err)
		}
	}
	if err := farEnded.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	_ = accepter.Close()
	<-dialer.Context().Done()
	if got, err := io.ReadAll(ended); err != nil || string(got) != "said" {
		t.Errorf("ended stream: %q, %v", got, err)
	}
	if got, err := io.ReadAll(cut); !errors.Is(err, tunnel.Lost) || string(got) != "said" {
		t.Errorf("cut stream: %q, %v", got, err)
	}
}

// A peer that does what no peer of ours does is cut off.
func TestUnruly(t *testing.T) {
	frame := func(kind byte, flags uint16, id, length uint32) []byte {
		return []byte{0, kind, byte(flags >> 8), byte(flags), byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id), byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}
	}
	for _, tc := range []struct {
		name string
		send []byte
	}{
		{"ping", frame(typePing, flagSYN, 0, 1)},
		{"a stream of ours", frame(typeWindow, flagSYN, 2, 0)},
		{"another version", []byte{9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		{"more than the window", append(frame(typeWindow, flagSYN, 1, 0), frame(typeData, 0, 1, 1<<30)...)},
		{"not yamux", []byte("GET / HTTP/1.1\r\n\r\n")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			peer, c := memnet.Pipe(memnet.Addr("peer"), memnet.Addr("us"))
			s, err := newSession(carrier.NewPipe(c, tunnel.Peer{}), false, tunnel.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := peer.Write(tc.send); err != nil {
				t.Fatal(err)
			}
			<-s.Context().Done()
			if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) {
				t.Errorf("cause: %v", err)
			}
			_ = peer.Close()
		})
	}
}

// A flood of streams that nobody accepts is bounded.
func backlogIsBounded(t *testing.T) {
	peer, c := memnet.Pipe(memnet.Addr("peer"), memnet.Addr("us"))
	s, err := newSession(carrier.NewPipe(c, tunnel.Peer{}), false, tunnel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.Discard, peer) })
	for id := uint32(1); id < 10000; id += 2 {
		h := resetHeader(id)
		h[3] = flagSYN
		if _, err := peer.Write(h[:]); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	s.wire.mu.Lock()
	n := len(s.wire.ended)
	s.wire.mu.Unlock()
	if n != backlog || s.mux.NumStreams() != backlog {
		t.Errorf("%d streams kept here, %d in yamux, want %d", n, s.mux.NumStreams(), backlog)
	}
	_ = s.Close()
	_ = peer.Close()
	wg.Wait()
}

// An Open that was given up leaves no stream behind, here or there.
func abandonedOpen(t *testing.T) {
	link, dialer, accepter := linked(t)
	link.Stall(true)
	// Fill what lies between yamux and the link, so that Open must wait.
	filler, err := dialer.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = filler.Write(make([]byte, 100<<10)) })
	synctest.Wait()
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := dialer.Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("open: %v", err)
		}
		cancel()
	}
	link.Stall(false)
	wg.Wait()
	synctest.Wait()
	if n := len(dialer.ours); n != 1 {
		t.Errorf("%d tokens are out, want the filler's", n)
	}
	if n := dialer.mux.NumStreams(); n != 1 {
		t.Errorf("yamux knows %d streams, want the filler's", n)
	}
	if n := accepter.mux.NumStreams(); n != 1 {
		t.Errorf("the peer knows %d streams, want the filler's", n)
	}
}

// A reset also gets through while nothing arrives that would wake the reader.
func TestResetWakesIdleReader(t *testing.T) {
	dialer, accepter := overLoopback(t, tunnel.Options{}) // TLS keeps its state over the wake-up
	for range 100 {
		near, far := open(t, dialer, accepter)
		if err := tunnel.Abort(near); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("far end: %v", err)
		}
		_ = far.Close()
	}
	near, far := open(t, dialer, accepter)
	if _, err := far.Write([]byte("still well")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(near, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
}

// What a peer says last is heard, although writing to it has failed before.
func TestLastWords(t *testing.T) {
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	words := errors.New("you are not welcome")
	c := &broken{Conn: a, words: words, wrote: make(chan struct{})}
	s, err := newSession(carrier.NewPipe(c, tunnel.Peer{}), true, tunnel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if st, err := s.Open(t.Context()); err == nil {
		_ = st.Close()
	}
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

// A header and its body are one write.
func framesAreJoined(t *testing.T) {
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	c := &counter{Conn: a}
	dialer, accepter := overConns(t, c, b, tunnel.Options{})
	defer accepter.Close()
	defer dialer.Close()
	near, far := open(t, dialer, accepter)
	synctest.Wait()
	before := c.count()
	for range 10 {
		if _, err := near.Write([]byte("key")); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.count() - before; n != 10 {
		t.Errorf("10 small writes became %d", n)
	}
	if _, err := io.ReadFull(far, make([]byte, 30)); err != nil {
		t.Fatal(err)
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
