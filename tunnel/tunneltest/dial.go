// What the suite asks of dials: their outcome, and what is left of those that
// nobody waits for any more.

package tunneltest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// outcomes are what dialing a target may end with, what the opener is told, and
// what that is for those who know only the standard library.
var outcomes = []struct {
	name string
	err  error // at the target
	code tunnel.Code
	is   error // at the opener; nil if there is nothing to compare it with
}{
	{"connection refused", syscall.ECONNREFUSED, tunnel.Refused, syscall.ECONNREFUSED},
	{"no such socket", syscall.ENOENT, tunnel.Refused, syscall.ECONNREFUSED},
	{"no route to host", syscall.EHOSTUNREACH, tunnel.Unreachable, syscall.EHOSTUNREACH},
	{"network unreachable", syscall.ENETUNREACH, tunnel.Unreachable, syscall.EHOSTUNREACH},
	{"network down", syscall.ENETDOWN, tunnel.Unreachable, syscall.EHOSTUNREACH},
	{"no address to dial from", syscall.EADDRNOTAVAIL, tunnel.Unreachable, syscall.EHOSTUNREACH},
	{"timed out", syscall.ETIMEDOUT, tunnel.Timeout, os.ErrDeadlineExceeded},
	{"deadline", context.DeadlineExceeded, tunnel.Timeout, os.ErrDeadlineExceeded},
	{"permission denied", syscall.EACCES, tunnel.Denied, nil},
	{"filtered", syscall.EPERM, tunnel.Denied, nil},
	{"reset", syscall.ECONNRESET, tunnel.Lost, syscall.ECONNRESET},
	{"out of files", syscall.EMFILE, tunnel.Busy, nil},
	{"out of files, all of us", syscall.ENFILE, tunnel.Busy, nil},
	{"no such family", syscall.EAFNOSUPPORT, tunnel.Invalid, nil},
	{"no such host", &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}, tunnel.Unresolved, nil},
	{"name server is silent", &net.DNSError{Err: "timeout", Name: "x", IsTimeout: true}, tunnel.Timeout, os.ErrDeadlineExceeded},
	{"bad address", &net.AddrError{Err: "missing port", Addr: "x"}, tunnel.Invalid, nil},
	{"given up by the node", context.Canceled, tunnel.Canceled, context.Canceled},
	{"something else", errors.New("the dog ate it"), tunnel.Internal, nil},
	{"no such node", tunnel.NoNode, tunnel.NoNode, nil},
	{"node is away", tunnel.Parked, tunnel.Parked, nil},
	{"node leaves", tunnel.Draining, tunnel.Draining, nil},
	{"two nodes", tunnel.Ambiguous, tunnel.Ambiguous, nil},
	{"replaced", tunnel.Replaced, tunnel.Replaced, nil},
	{"revoked", tunnel.Revoked, tunnel.Revoked, nil},
	{"node is silent", tunnel.Dead, tunnel.Dead, syscall.ECONNRESET},
}

// testOutcomes takes each from the target's error to the opener's.
func testOutcomes(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	ctx := within(t)
	byAddr := make(map[string]error)
	for i, o := range outcomes {
		err := o.err
		if _, coded := err.(tunnel.Code); !coded { //nolint:errorlint // a row's own
			err = &net.OpError{Op: "dial", Net: "tcp", Err: err}
		}
		byAddr[fmt.Sprintf("target:%d", i+1)] = err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		err := ServeRequests(ctx, b, func(ctx context.Context, r *tunnel.Request) {
			_, _ = tunnel.Answer(ctx, r, func(_ context.Context, _, addr string) (net.Conn, error) { // the opener's is checked
				return nil, byAddr[addr]
			})
		})
		if err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	for i, o := range outcomes {
		st, err := tunnel.Connect(ctx, a, "tcp", fmt.Sprintf("target:%d", i+1))
		if err == nil {
			t.Errorf("%s: connected", o.name)
			_ = st.Close()
			continue
		}
		var de *tunnel.DialError
		if !errors.As(err, &de) || de.Code != o.code || tunnel.CodeOf(err) != o.code || !errors.Is(err, o.code) {
			t.Errorf("%s: code %d of %v, want %d", o.name, tunnel.CodeOf(err), err, o.code)
		}
		if o.is != nil && !errors.Is(err, o.is) {
			t.Errorf("%s: %v is not %v", o.name, err, o.is)
		}
		if !strings.Contains(err.Error(), o.err.Error()) {
			t.Errorf("%s: %v does not say so", o.name, err)
		}
	}
	_ = a.Close()
	finishes(t, "serve", wg.Wait)
}

// testTargetReset has the target break: that is no end.
func testTargetReset(t *testing.T, pair Make) {
	ctx, a, ln, serving := targets(t, pair)
	st, err := tunnel.Connect(ctx, a, "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	target, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = target.Write([]byte("half a sente"))
	if _, err := io.ReadFull(st, make([]byte, 12)); err != nil {
		t.Error(err)
	}
	_ = tunnel.Abort(target)
	finishes(t, "read", func() {
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v", err)
		}
	})
	_, _ = st.Close(), a.Close()
	finishes(t, "serve", serving.Wait)
}

// Dials that are given up, at whatever state, leave nothing behind: no stream, no
// place, no goroutine.
func testCanceledDials(t *testing.T, pair Make) {
	const places = 16
	for _, state := range []string{"not accepted", "not read", "not answered", "answered"} {
		t.Run(strings.ReplaceAll(state, " ", "-"), func(t *testing.T) {
			a, b := pair(t, tunnel.Options{MaxStreams: places})
			checkEmpty(t, a, b, places) // everything has started
			before := runtime.NumGoroutine()
			stop := make(chan struct{})
			var wg sync.WaitGroup
			if state != "not accepted" {
				wg.Go(func() { answerUntil(t, b, state, stop) })
			}
			for range 10 {
				giveUp(t, a, places, state == "answered")
			}
			close(stop)
			if state != "not accepted" {
				// A stream tells the answering end to stop.
				st, err := a.Open(within(t))
				if err != nil {
					t.Fatalf("open after the others: %v", err)
				}
				_, _ = st.Write([]byte{0}) // or it might not be seen
				finishes(t, "answering", wg.Wait)
				_ = tunnel.Abort(st)
			}
			checkEmpty(t, a, b, places)
			// A session may have one or two at work for itself; ten times as many
			// dials as there are places would leave more.
			Eventually(t, "quiet", func() bool { return runtime.NumGoroutine() < before+places })
		})
	}
}

// giveUp dials n times at once and gives up.
func giveUp(t *testing.T, s tunnel.Session, n int, answered bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	if answered {
		ctx, cancel = context.WithTimeout(t.Context(), patience)
	}
	defer cancel()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			st, err := tunnel.Connect(ctx, s, "tcp", "target:1")
			switch {
			case answered && err != nil:
				t.Errorf("dial: %v", err)
			case err == nil:
				_ = tunnel.Abort(st)
			case tunnel.CodeOf(err) != tunnel.Timeout:
				t.Errorf("a dial that was given up: %v", err)
			}
		})
	}
	finishes(t, "dials that were given up", wg.Wait)
}

// answerUntil accepts streams, and treats them as state says, until stop is
// closed and one more has come.
func answerUntil(t *testing.T, s tunnel.Session, state string, stop <-chan struct{}) {
	ctx := within(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		st, err := s.Accept(ctx)
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		select {
		case <-stop:
			// Its byte proves that Open has returned. An SSH server opens a stream after its
			// target has accepted it, and fails if the target has reset it by then.
			_, _ = st.Read(make([]byte, 1))
			_ = tunnel.Abort(st)
			return
		default:
		}
		wg.Go(func() { answer(st, state) })
	}
}

// answer does with a dial what state says, until the opener gives it up.
func answer(st tunnel.Stream, state string) {
	defer func() { _ = tunnel.Abort(st) }()
	if state == "not read" {
		_, _ = io.Copy(io.Discard, st) // until it is reset
		return
	}
	r, err := tunnel.ReadRequest(st)
	if err != nil {
		return // given up before it was read
	}
	if state == "answered" {
		if _, err = r.Accept(); err != nil {
			return
		}
	}
	_, _ = st.Read(make([]byte, 1)) // until it is reset
}

// checkEmpty says whether all places of a session are free, once whoever answers has
// seen those that were given up.
func checkEmpty(t *testing.T, a, b tunnel.Session, places int) {
	t.Helper()
	var (
		opening  sync.WaitGroup
		near     []tunnel.Stream // of the one who opens, until opening is over
		accepted []tunnel.Stream
	)
	defer opening.Wait()
	opening.Go(func() {
		for i := range places {
			st, err := a.Open(within(t))
			if err != nil {
				t.Errorf("open stream %d of %d: %v", i+1, places, err)
				return
			}
			if _, err := st.Write([]byte{live}); err != nil {
				t.Errorf("write: %v", err)
			}
			near = append(near, st)
		}
	})
	for range places {
		accepted = append(accepted, acceptLive(t, b))
	}
	opening.Wait()
	for _, st := range append(near, accepted...) {
		_ = tunnel.Abort(st)
	}
}

// live is what checkEmpty says on a stream, and nobody else.
const live = 0xee

// acceptLive accepts a stream that says what checkEmpty does. A transport may show those
// first that were given up, of which the dial may have come and nothing else yet.
func acceptLive(t *testing.T, s tunnel.Session) tunnel.Stream {
	t.Helper()
	for {
		st, err := s.Accept(within(t))
		if err != nil {
			t.Fatalf("accept: %v", err)
		}
		_ = st.SetReadDeadline(time.Now().Add(patience))
		said := make([]byte, 1)
		if _, err := io.ReadFull(st, said); err == nil && said[0] == live {
			_ = st.SetReadDeadline(time.Time{})
			return st
		}
		_ = tunnel.Abort(st)
	}
}

// 16 streams full of bulk are given up: the next dial is answered.
func testAbortBulk(t *testing.T, pair Make) {
	for _, who := range []string{"writer", "reader"} {
		a, b := pair(t, tunnel.Options{})
		var wg sync.WaitGroup
		var near, far []tunnel.Stream
		for range 16 {
			x, y := streams(t, a, b)
			near, far = append(near, x), append(far, y)
			wg.Go(func() {
				if _, err := io.Copy(x, pattern{}); err == nil {
					t.Error("an endless source has come to an end")
				}
			})
		}
		for _, st := range far { // so that all are under way
			if _, err := io.CopyN(io.Discard, st, 256<<10); err != nil {
				t.Error(err)
			}
		}
		ends := near
		if who == "reader" {
			ends = far
		}
		for _, st := range ends {
			_ = tunnel.Abort(st)
		}
		finishes(t, "writers of streams that were given up", wg.Wait)
		finishes(t, "the next stream", func() {
			x, y := streams(t, a, b)
			_, _ = x.Close(), y.Close()
		})
		for i := range near {
			_, _ = near[i].Close(), far[i].Close()
		}
		checkEmpty(t, a, b, 100)
	}
}
