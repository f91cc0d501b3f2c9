// What the suite asks of a session rather than of its streams.

package tunneltest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// While nobody accepts, Open blocks at some point, gives up with its ctx, and
// works again once somebody accepts. Where the only bound is that of all streams, some
// have to end first.
func testFullBacklog(t *testing.T, pair Make) {
	const limit = 1024
	a, b := pair(t, tunnel.Options{MaxStreams: limit})
	var opened, accepted []tunnel.Stream
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		st, err := a.Open(ctx)
		cancel()
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("open with a full backlog: %v", err)
			}
			break
		}
		if opened = append(opened, st); len(opened) > limit {
			t.Fatal("the backlog has no bound")
		}
		if _, err := st.Write([]byte{0}); err != nil { // which may be what shows it to the peer
			t.Fatalf("first write: %v", err)
		}
	}
	for range opened {
		st, err := b.Accept(within(t))
		if err != nil {
			t.Fatalf("accept: %v", err)
		}
		accepted = append(accepted, st)
	}
	end := func() {
		for i, st := range opened {
			if err := errors.Join(st.Close(), accepted[i].Close()); err != nil {
				t.Error(err)
			}
		}
	}
	if len(opened) == limit {
		end()
	} else {
		defer end()
	}
	near, err := a.Open(within(t))
	if err != nil {
		t.Fatalf("open after the backlog cleared: %v", err)
	}
	_ = near.Close()
}

func testMaxStreams(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{MaxStreams: 2})
	first, far := streams(t, a, b)
	streams(t, a, b)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("third stream of two: %v", err)
	}
	_ = first.Close()
	_ = far.Close()
	st, err := a.Open(within(t))
	if err != nil {
		t.Fatalf("open after one closed: %v", err)
	}
	_ = st.Close()
}

// The last streams of a session are kept for dials that are not Spare.
func testSpare(t *testing.T, pair Make) {
	const most = 8
	a, b := pair(t, tunnel.Options{MaxStreams: most})
	spare := tunnel.Dial{Network: "tcp", Addr: "target", Spare: true}
	near, far := streams(t, a, b)
	for range most - 2 {
		streams(t, a, b)
	}
	if l := a.Link(); l.Streams != most-1 || l.MaxStreams != most {
		t.Errorf("%d of %d streams are open", l.Streams, l.MaxStreams)
	}
	if _, err := spare.Connect(t.Context(), a); tunnel.CodeOf(err) != tunnel.Busy {
		t.Errorf("with one stream left: %v", err)
	}
	_, _ = near.Close(), far.Close()
	streams(t, a, b) // once the peer allows one
	Eventually(t, "as many open as before", func() bool { return a.Link().Streams == most-1 })
}

func testPeerDiesMidWrite(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	near, far := streams(t, a, b)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.ReadFull(far, make([]byte, 1<<20)); err != nil {
			t.Errorf("read: %v", err)
		}
		_ = b.Close()
	})
	finishes(t, "write to a dying peer", func() {
		if _, err := io.Copy(near, pattern{}); err == nil {
			t.Error("no error")
		}
	})
	wg.Wait()
	finishes(t, "session's end", func() { <-a.Context().Done() })
	if err := context.Cause(a.Context()); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("cause: %v", err)
	}
	if _, err := a.Open(t.Context()); err == nil {
		t.Error("opened a stream on a dead session")
	}
	if _, err := a.Accept(t.Context()); err == nil {
		t.Error("accepted a stream on a dead session")
	}
}

// The end of a session is not the end of what was being said.
func testDeathIsNoEOF(t *testing.T, pair Make) {
	for _, who := range []string{"far", "near"} {
		a, b := pair(t, tunnel.Options{})
		near, _ := streams(t, a, b)
		if who == "far" {
			_ = b.Close()
		} else {
			_ = a.Close()
		}
		finishes(t, "read", func() {
			if _, err := near.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("%s end closed the session: read gave %v", who, err)
			}
		})
	}
}

func testCloseUnblocks(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	reading, _ := streams(t, a, b)
	writing, _ := streams(t, a, b)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := reading.Read(make([]byte, 1)); err == nil {
			t.Error("read succeeded")
		}
	})
	wg.Go(func() {
		if _, err := io.Copy(writing, pattern{}); err == nil {
			t.Error("write succeeded")
		}
	})
	wg.Go(func() {
		if _, err := a.Accept(context.WithoutCancel(t.Context())); err == nil {
			t.Error("accept succeeded")
		}
	})
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	finishes(t, "blocked calls", wg.Wait)
	select {
	case <-a.Context().Done():
	default:
		t.Error("Close returned before the session's context was done")
	}
	if err := a.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if !errors.Is(context.Cause(a.Context()), net.ErrClosed) {
		t.Errorf("cause at the closing end: %v", context.Cause(a.Context()))
	}
}

func testCanceled(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("accept: %v", err)
	}
	// Open may succeed if it need not wait; if it fails, then for this reason.
	if st, err := a.Open(ctx); err == nil {
		_ = st.Close()
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("open: %v", err)
	}
	if a.Context().Err() != nil {
		t.Error("a canceled call ended the session")
	}
}

func testDialAndAnswer(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	ctx := within(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := ServeRequests(ctx, b, func(_ context.Context, r *tunnel.Request) {
			if r.Addr != "echo:7" {
				_ = r.Reject(tunnel.Refused, "nobody home") // the dialer's error is checked
				return
			}
			st, err := r.Accept()
			if err != nil {
				t.Errorf("accept: %v", err)
				return
			}
			_, _ = io.Copy(st, st) // the dialer's bytes are checked
			_ = st.Close()
		})
		if err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	if _, err := tunnel.Connect(ctx, a, "tcp", "nobody:1"); !errors.Is(err, tunnel.Refused) {
		t.Errorf("refused dial: %v", err)
	}
	st, err := tunnel.Connect(ctx, a, "tcp", "echo:7")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(st, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = st.CloseWrite()
	if got, err := io.ReadAll(st); err != nil || string(got) != "hello" {
		t.Errorf("echo: %q, %v", got, err)
	}
	_ = st.Close()
	_ = a.Close()
	finishes(t, "serve", wg.Wait)
}
