// Package tunneltest is what every transport must pass.
//
// Its mental model: a transport is good if a program that was written for
// net.Conn cannot tell. The suite runs golang.org/x/net/nettest on streams
// opened from either end, and then what nettest does not know: half-closes,
// many streams, a stalled reader beside others, a full backlog, and a peer that
// dies.
package tunneltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/hawser-project/hawser/tunnel"
)

// Make makes a session and returns the dialing and the accepting end. The suite
// closes both.
type Make func(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session)

// patience bounds every wait of the suite. It is no measure: what takes this
// long hangs.
const patience = 30 * time.Second

// Run runs what sessions with these capabilities must pass.
func Run(t *testing.T, can tunnel.Capabilities, mk Make) {
	t.Run("FromDialer", func(t *testing.T) { RunDialer(t, can, mk) })
	t.Run("FromAccepter", func(t *testing.T) {
		RunDialer(t, can, func(t testing.TB, o tunnel.Options) (opener, answerer tunnel.Session) {
			a, b := mk(t, o)
			return b, a
		})
	})
}

// RunDialer is Run for sessions of which only the dialing end opens streams. It leaves out the
// cases named in except; its caller says why.
func RunDialer(t *testing.T, can tunnel.Capabilities, mk Make, except ...string) {
	pair := func(t testing.TB, o tunnel.Options) (opener, answerer tunnel.Session) {
		a, b := mk(t, o)
		t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
		return a, b
	}
	t.Run("Conn", func(t *testing.T) { testConn(t, pair) })
	for _, c := range cases {
		if (c.needs == nil || c.needs(can)) && !slices.Contains(except, c.name) {
			t.Run(c.name, func(t *testing.T) { c.run(t, pair) })
		}
	}
}

// A capability is one that a case is about.
type capability func(tunnel.Capabilities) bool

func halfClose(c tunnel.Capabilities) bool { return c.HalfClose }
func reset(c tunnel.Capabilities) bool     { return c.Reset }

var cases = []struct {
	name  string
	run   func(t *testing.T, pair Make)
	needs capability // nil means none
}{
	{"HalfClose", testHalfClose, halfClose},
	{"HalfCloseBulk", testHalfCloseBulk, halfClose},
	{"CloseDelivers", testCloseDelivers, nil},
	{"CloseEndsPeerWrites", testCloseEndsPeerWrites, reset},
	{"Abort", testAbort, reset},
	{"ManyStreams", testManyStreams, nil},
	{"StalledReader", testStalledReader, nil},
	{"FullBacklog", testFullBacklog, nil},
	{"MaxStreams", testMaxStreams, nil},
	{"Spare", testSpare, nil},
	{"PeerDiesMidWrite", testPeerDiesMidWrite, nil},
	{"DeathIsNoEOF", testDeathIsNoEOF, nil},
	{"CloseUnblocks", testCloseUnblocks, nil},
	{"CanceledOpenAndAccept", testCanceled, nil},
	{"DialAndAnswer", testDialAndAnswer, nil},
	{"Outcomes", testOutcomes, nil},
	{"TargetReset", testTargetReset, reset},
	{"AnswerBeforeReset", testAnswerBeforeReset, reset},
	{"CanceledDials", testCanceledDials, nil},
	{"GivenUp", testGivenUp, reset},
	{"AnsweredLate", testAnsweredLate, nil},
	{"AbortBulk", testAbortBulk, reset},
	{"IdleSplices", testIdleSplices, nil},
	{"BufferReader", testBufferReader, nil},
}

func testConn(t *testing.T, pair Make) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := pair(t, tunnel.Options{})
		sa, sb := streams(t, a, b)
		return sa, sb, func() { _ = sa.Close(); _ = sb.Close(); _ = a.Close(); _ = b.Close() }, nil
	})
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Eventually waits until is returns true, for what nobody announces. It fails the test if that
// takes half a minute.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	ctx := within(t)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not %s after %v", what, patience)
		}
	}
}

// streams opens a stream and accepts it.
func streams(t testing.TB, opener, answerer tunnel.Session) (near, far tunnel.Stream) {
	t.Helper()
	near, err := opener.Open(within(t))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	// A transport may show a stream only once it has carried something.
	if _, err = near.Write([]byte{0}); err != nil {
		t.Fatalf("first write: %v", err)
	}
	far, err = answerer.Accept(within(t))
	if err != nil {
		t.Fatalf("accept: %v", err)
	}
	if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
		t.Fatalf("first read: %v", err)
	}
	return near, far
}

// finishes fails the test if f does not come back.
func finishes(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s: still blocked after %v", what, patience)
	}
}

func testHalfClose(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	near, far := streams(t, a, b)
	for _, d := range []struct{ from, to tunnel.Stream }{{near, far}, {far, near}} {
		if _, err := d.from.Write([]byte("said")); err != nil {
			t.Fatal(err)
		}
		if err := d.from.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.from.Write([]byte("more")); err == nil {
			t.Error("write after CloseWrite succeeded")
		}
		finishes(t, "read to the end", func() {
			if got, err := io.ReadAll(d.to); err != nil || string(got) != "said" {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
	if err := errors.Join(near.Close(), far.Close()); err != nil {
		t.Error(err)
	}
}

// After a half-close, far more than any window still flows the other way.
func testHalfCloseBulk(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	near, far := streams(t, a, b)
	if err := near.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	const size = 16 << 20
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.Copy(far, io.LimitReader(pattern{}, size)); err != nil {
			t.Errorf("write: %v", err)
		}
		if err := far.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	finishes(t, "bulk", func() {
		n, err := io.Copy(io.Discard, near)
		if n != size || err != nil {
			t.Errorf("read %d bytes, %v", n, err)
		}
	})
	wg.Wait()
}

// What was written before Close arrives, and then the end.
func testCloseDelivers(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	near, far := streams(t, a, b)
	want := bytes.Repeat([]byte("0123456789abcdef"), 2048)
	if _, err := near.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	finishes(t, "read", func() {
		if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, want) {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
	})
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after Close: %v", err)
	}
	if _, err := near.Write(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after Close: %v", err)
	}
}

// Nobody reads a closed stream: its peer's writes come to an end.
func testCloseEndsPeerWrites(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	near, far := streams(t, a, b)
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	finishes(t, "writing to a closed stream", func() {
		if _, err := io.Copy(far, pattern{}); err == nil {
			t.Error("no error")
		}
	})
}

// An aborted stream does not look as if it had come to its end.
func testAbort(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	near, far := streams(t, a, b)
	if _, err := near.Write([]byte("half a sente")); err != nil {
		t.Fatal(err)
	}
	if err := tunnel.Abort(near); err != nil {
		t.Fatal(err)
	}
	finishes(t, "read", func() {
		if got, err := io.ReadAll(far); err == nil {
			t.Errorf("read %q and an orderly end", got)
		}
	})
	finishes(t, "write", func() {
		if _, err := io.Copy(far, pattern{}); err == nil {
			t.Error("wrote to an aborted stream")
		}
	})
	// The session is none the worse.
	streams(t, a, b)
}

func testManyStreams(t *testing.T, pair Make) {
	const n = 1000
	a, b := pair(t, tunnel.Options{})
	ctx := within(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range n {
			st, err := b.Accept(ctx)
			if err != nil {
				t.Errorf("accept: %v", err)
				return
			}
			wg.Go(func() {
				if _, err := io.Copy(st, st); err != nil {
					t.Errorf("echo: %v", err)
				}
				_ = st.Close()
			})
		}
	})
	open := make(chan struct{}) // closed when all are
	var opened sync.WaitGroup
	opened.Add(n)
	for i := range n {
		wg.Go(func() {
			st, err := a.Open(ctx)
			opened.Done()
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			defer st.Close()
			<-open
			want := fmt.Sprintf("stream %d", i)
			if _, err := io.WriteString(st, want); err != nil {
				t.Errorf("write: %v", err)
			}
			_ = st.CloseWrite()
			if got, err := io.ReadAll(st); err != nil || string(got) != want {
				t.Errorf("read %q, %v; want %q", got, err, want)
			}
		})
	}
	opened.Wait()
	close(open)
	finishes(t, "1,000 streams", wg.Wait)
}

// One reader that never reads costs its neighbours nothing.
func testStalledReader(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	stalled, _ := streams(t, a, b)
	if err := stalled.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(stalled, pattern{})
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		t.Fatalf("filling the window: %d bytes, %v", n, err)
	}
	if n > 64<<20 {
		t.Errorf("a stream nobody reads took %d bytes", n)
	}
	for range 4 {
		near, far := streams(t, a, b)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = io.Copy(near, io.LimitReader(pattern{}, 4<<20)) // the reader counts
			_ = near.CloseWrite()
		})
		finishes(t, "a neighbour's 4 MiB", func() {
			if n, err := io.Copy(io.Discard, far); n != 4<<20 || err != nil {
				t.Errorf("neighbour read %d bytes, %v", n, err)
			}
			wg.Wait()
		})
	}
}

// pattern is an endless source.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i)
	}
	return len(p), nil
}
