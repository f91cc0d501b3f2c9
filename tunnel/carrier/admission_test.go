package carrier

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// Clients that say nothing, or half a word, keep nobody out.
func TestSlowHandshakes(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	const limit = 8
	srv := crowded(t, limit, patience, tunnel.Options{TLS: ca.Server(t)})
	var slow []net.Conn
	for i := range 5 * limit {
		c, err := net.Dial("tcp", srv.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 1 {
			_, _ = io.WriteString(c, "\x16\x03\x01\x02\x00\x01") // of a ClientHello
		}
		slow = append(slow, c)
		tunneltest.Eventually(t, "admitted", func() bool {
			silent := srv.admission.silent
			inside := silent.Count()
			return inside == min(i+1, limit*3/8) && inside+int(silent.Lost()) >= i+1 && srv.Handshakes().Underway == inside
		})
	}
	for range 3 {
		near := dial(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "a")})
		said(t, near, srv.next(t), "let in")
	}
	// It was the oldest that had to go.
	_ = slow[0].SetReadDeadline(time.Now().Add(patience))
	if _, err := slow[0].Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the slowest client is still there: %v", err)
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error) //nolint:errorlint // of package net itself
	return ok && ne.Timeout()
}

// While the server is the slow end, clients that are there keep their places, and
// those that come are sent away at once.
func TestStorm(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	const limit = 1 // so that none yields its place to another before it has spoken
	var log lines
	srv := crowded(t, limit, patience, tunnel.Options{TLS: ca.Server(t), Log: log.logger()})
	tokens := srv.admission.tokens
	for range cap(tokens) {
		tokens <- struct{}{} // nobody computes
	}
	var wg sync.WaitGroup
	for i := range limit {
		wg.Go(func() {
			if _, err := reach(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "a")}); err != nil {
				t.Errorf("one that was let in: %v", err)
			}
		})
		tunneltest.Eventually(t, "waiting for its turn", func() bool { return srv.queued() == i+1 })
	}
	for range 3 {
		_, err := reach(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "b")})
		if err == nil || context.Cause(within(t)) != nil {
			t.Errorf("one too many: %v", err)
		}
	}
	if got := log.String(); strings.Count(got, "too many handshakes") != 1 {
		t.Errorf("log: %s", got)
	}
	if got := srv.Handshakes(); got.Refused != 3 || got.Underway != limit {
		t.Errorf("handshakes: %+v", got)
	}
	for range cap(tokens) {
		<-tokens
	}
	wg.Wait()
	tunneltest.Eventually(t, "empty", func() bool { return srv.Handshakes().Underway == 0 && len(tokens) == 0 })
}

// A server that has fallen behind sends those away that have waited too long for their
// first turn, and takes clients again when it has caught up.
func TestBehind(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	srv := crowded(t, 8, 10*time.Millisecond, tunnel.Options{TLS: ca.Server(t)})
	e := srv.admission
	for range cap(e.tokens) {
		e.tokens <- struct{}{} // nobody computes
	}
	if _, err := reach(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "b")}); err == nil || context.Cause(within(t)) != nil {
		t.Errorf("nobody computes: %v", err)
	}
	if got := srv.Handshakes(); got.Refused != 1 || got.Failed != 0 {
		t.Errorf("handshakes: %+v", got)
	}
	for range cap(e.tokens) {
		<-e.tokens
	}
	if _, err := reach(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "b")}); err != nil {
		t.Fatalf("once it has caught up: %v", err)
	}
}

// A client that has been answered is not thrown away for those that
// come.
func TestSecondTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newAdmission(8, slog.New(slog.DiscardHandler))
		for range cap(e.tokens) {
			e.tokens <- struct{}{} // nobody computes
		}
		turn := func(spoken bool) error {
			near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
			defer far.Close()
			ctx, cancel := context.WithTimeout(t.Context(), handshakeTimeout)
			defer cancel()
			return (&handshake{Conn: near, admission: e, ctx: ctx, answered: spoken}).acquire()
		}
		if err := turn(false); !errors.Is(err, tunnel.Busy) {
			t.Errorf("the first turn: %v", err)
		}
		if err := turn(true); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the second turn: %v", err)
		}
	})
}

// A server that stops does not wait for slow clients.
func TestStopDuringHandshakes(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	srv := crowded(t, 8, patience, tunnel.Options{TLS: ca.Server(t)})
	c, err := net.Dial("tcp", srv.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tunneltest.Eventually(t, "there", func() bool { return srv.admission.silent.Count() == 1 })
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.stop()
	}()
	select {
	case <-done:
	case <-within(t).Done():
		t.Fatal("still waiting")
	}
}

// queued is how many handshakes do not wait for their clients.
func (s *server) queued() int {
	return s.Handshakes().Underway - s.admission.silent.Count()
}

// One address that fills the entrance costs itself its places, and no other address.
func TestOneSourceKeepsNobodyOut(t *testing.T) {
	const limit = 8
	e := newAdmission(limit, slog.New(slog.DiscardHandler))
	var reads sync.WaitGroup
	defer reads.Wait()
	defer e.close()
	ended := make(map[byte]*atomic.Int64)
	arrive := func(b byte) {
		t.Helper()
		near, far := memnet.Pipe(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 99)}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, b)})
		t.Cleanup(func() { _ = far.Close() })
		tunneltest.Eventually(t, "a place", func() bool { return len(e.places) < limit })
		g := e.admit(near)
		n := ended[b]
		cutOff := e.silent.Lost()
		reads.Go(func() {
			_ = g.run(context.WithoutCancel(t.Context()), func(context.Context) error {
				_, err := g.Read(make([]byte, 1))
				n.Add(1)
				return err
			})
		})
		tunneltest.Eventually(t, "listening", func() bool {
			return e.silent.Lost() > cutOff || e.silent.Count() == len(e.places)
		})
	}
	for b := range byte(4) {
		ended[b] = new(atomic.Int64)
	}
	arrive(2) // on a bad line, and the first to come
	for range 10 * limit {
		arrive(1)
	}
	arrive(3)
	for range 10 * limit {
		arrive(1)
	}
	if slow, other := ended[2].Load(), ended[3].Load(); slow+other > 0 {
		t.Errorf("places lost to another address: %d, %d", slow, other)
	}
	if n := e.silent.Count(); n != limit*3/8 {
		t.Errorf("%d handshakes wait for their clients", n)
	}
}

// A client that fails again and again is in the log once a minute.
func TestFailedHandshakesAreLoggedSparsely(t *testing.T) {
	ca, other := tunneltest.NewAuthority(t, "ca"), tunneltest.NewAuthority(t, "other")
	var log lines
	srv := serve(t, tunnel.Options{TLS: ca.Server(t), Log: log.logger()})
	stranger := other.Client(t, "a")
	stranger.RootCAs = ca.Pool()
	for range 20 {
		if _, err := reach(t, srv.addr, tunnel.Options{TLS: stranger}); err == nil {
			t.Error("a stranger is let in")
		}
	}
	srv.stop()
	if got := strings.Count(log.String(), "handshake failed"); got != 1 {
		t.Errorf("%d lines:\n%s", got, &log)
	}
	if got := srv.Handshakes(); got.Failed != 20 {
		t.Errorf("%+v", got)
	}
}

// What was done for a client is not undone for the next one, whether they come from one
// address or from one each. Those that keep silent for long yield, and so does an address
// that has more than its share.
func TestNewcomersUndoNothing(t *testing.T) {
	for _, sources := range []int{1, 100} {
		synctest.Test(t, func(t *testing.T) { testNewcomers(t, sources) })
	}
}

func testNewcomers(t *testing.T, sources int) {
	const limit = 16
	e := newAdmission(limit, slog.New(slog.DiscardHandler))
	var lost atomic.Int64
	// come has a client come that speaks, is answered, and is silent from then on. It
	// says whether it was.
	arrive := func(source int) bool {
		near, far := memnet.Pipe(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 99)}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(source))})
		g := e.admit(near)
		if g == nil {
			return false
		}
		var answered atomic.Bool
		go func() {
			_ = g.run(t.Context(), func(context.Context) error {
				if _, err := g.Read(make([]byte, 1)); err != nil {
					return err
				}
				_, _ = g.Write([]byte("b"))
				answered.Store(true)
				_, err := g.Read(make([]byte, 1))
				lost.Add(1)
				return err
			})
		}()
		_, _ = far.Write([]byte("a"))
		synctest.Wait()
		return answered.Load()
	}
	for i := range limit * 3 / 8 {
		if !arrive(i % sources) {
			t.Fatalf("%d sources: the first clients are not answered", sources)
		}
	}
	for range 10 * limit {
		if arrive(0); lost.Load() > 0 {
			t.Fatalf("%d sources: newcomers cost one its place that was answered", sources)
		}
	}
	if !arrive(200) && sources == 1 || lost.Load() > 1 {
		t.Errorf("%d sources: one that has all places keeps another out, %d lost their places", sources, lost.Load())
	}
	time.Sleep(maxAnswer)
	if !arrive(0) {
		t.Errorf("%d sources: clients that do not answer keep others out", sources)
	}
	e.close()
	synctest.Wait()
}
