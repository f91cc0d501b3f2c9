package carrier

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
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
	srv := crowded(t, limit, tunnel.Options{TLS: ca.Server(t)})
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
		eventually(t, "admitted", func() bool { return srv.handshakes(listening, c) == 1 })
		if n := srv.handshakes(listening, nil); n != min(i+1, limit) {
			t.Fatalf("after %d clients there are %d", i+1, n)
		}
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
	const limit = 4
	var log lines
	srv := crowded(t, limit, tunnel.Options{TLS: ca.Server(t), Log: log.logger()})
	tokens := srv.acceptor.entrance.tokens
	for range cap(tokens) {
		tokens <- struct{}{} // nobody computes
	}
	var wg sync.WaitGroup
	for range limit {
		wg.Go(func() {
			if _, err := reach(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "a")}); err != nil {
				t.Errorf("one that was let in: %v", err)
			}
		})
	}
	eventually(t, "waiting for their turn", func() bool { return srv.handshakes(queued, nil) == limit })
	for range 3 {
		_, err := reach(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "b")})
		if err == nil || context.Cause(within(t)) != nil {
			t.Errorf("one too many: %v", err)
		}
	}
	if got := log.String(); strings.Count(got, "too many handshakes") != 1 {
		t.Errorf("log: %s", got)
	}
	if got := srv.acceptor.Handshakes(); got.Refused != 3 || got.Underway != limit {
		t.Errorf("handshakes: %+v", got)
	}
	for range cap(tokens) {
		<-tokens
	}
	wg.Wait()
	eventually(t, "empty", func() bool { return srv.acceptor.entrance.size() == 0 && len(tokens) == 0 })
}

// A server that has fallen behind sends newcomers away before all places are
// taken, and takes them again when it has caught up.
func TestBehind(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	srv := crowded(t, 8, tunnel.Options{TLS: ca.Server(t)})
	e := srv.acceptor.entrance
	for range cap(e.tokens) {
		e.tokens <- struct{}{} // nobody computes
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := reach(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "a")}); err != nil {
			t.Errorf("one that was let in: %v", err)
		}
	})
	eventually(t, "waiting for its turn", func() bool { return srv.handshakes(queued, nil) == 1 })
	if n, _ := e.count(); n != 1 {
		t.Fatalf("%d handshakes", n)
	}
	e.mu.Lock()
	e.handshakes.Front().Value.(*handshake).since = time.Now().Add(-maxQueue - time.Second)
	e.mu.Unlock()
	if _, err := reach(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "b")}); err == nil {
		t.Error("let in")
	}
	if got := srv.acceptor.Handshakes(); got.Refused != 1 {
		t.Errorf("handshakes: %+v", got)
	}
	for range cap(e.tokens) {
		<-e.tokens
	}
	wg.Wait()
	_, err := reach(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "b")})
	if err != nil {
		t.Fatalf("once it has caught up: %v", err)
	}
}

// A server that stops does not wait for slow clients.
func TestStopDuringHandshakes(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	srv := crowded(t, 8, tunnel.Options{TLS: ca.Server(t)})
	c, err := net.Dial("tcp", srv.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "there", func() bool { return srv.handshakes(listening, c) == 1 })
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
	g := srv.acceptor.entrance
	a, b := net.Pipe()
	defer a.Close()
	if g.admit(b) != nil {
		t.Error("a closed entrance admits")
	}
}

// handshakes is how many are in that phase of their handshake; with a client's
// connection, of that one.
func (s *server) handshakes(in phase, c net.Conn) (n int) {
	e := s.acceptor.entrance
	e.mu.Lock()
	defer e.mu.Unlock()
	for at := e.handshakes.Front(); at != nil; at = at.Next() {
		g := at.Value.(*handshake)
		if g.phase == in && (c == nil || g.RemoteAddr().String() == c.LocalAddr().String()) {
			n++
		}
	}
	return n
}

func (e *entrance) size() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.handshakes.Len()
}

// One address that fills the entrance costs itself its places, and no other address.
func TestOneSourceKeepsNobodyOut(t *testing.T) {
	const limit = 8
	e := newEntrance(limit, slog.New(slog.DiscardHandler))
	defer e.close()
	come := func(b byte) (*handshake, *memnet.Conn) {
		t.Helper()
		near, far := memnet.Pipe(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 99)}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, b)})
		g := e.admit(near)
		if g == nil {
			t.Fatalf("10.0.0.%d is sent away", b)
		}
		g.enter(listening)
		return g, far
	}
	slow, _ := come(2) // on a bad line, and the first to come
	for range 100 * limit {
		come(1)
	}
	other, _ := come(3)
	for range 100 * limit {
		come(1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if slow.evicted || other.evicted {
		t.Errorf("places lost to another address: %t, %t", slow.evicted, other.evicted)
	}
	if n := e.handshakes.Len(); n != limit {
		t.Errorf("%d handshakes", n)
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
	if got := srv.acceptor.Handshakes(); got.Failed != 20 {
		t.Errorf("%+v", got)
	}
}

// What was done for a client is not thrown away for the next one, whether they come
// from one address or from one each; those that have said nothing yield, and so does an
// address that has more than its share.
func TestNewcomersUndoNothing(t *testing.T) {
	const limit = 8
	synctest.Test(t, func(t *testing.T) {
		for _, sources := range []byte{1, limit} {
			e := newEntrance(limit, slog.New(slog.DiscardHandler))
			come := func(b byte) *handshake {
				near, far := memnet.Pipe(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 99)}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, b)})
				t.Cleanup(func() { _ = far.Close() })
				g := e.admit(near)
				if g != nil {
					g.enter(listening)
				}
				return g
			}
			var served []*handshake
			for i := range byte(limit - 1) {
				g := come(i % sources)
				g.answered()
				served = append(served, g)
			}
			silent := come((limit - 1) % sources)
			last := come((limit - 1) % sources)
			if last == nil || !silent.evicted {
				t.Fatalf("%d sources: a client that has said nothing keeps its place", sources)
			}
			last.answered()
			served = append(served, last)
			others := 0
			for range 10 * limit {
				if come(0) != nil {
					others++
				}
			}
			for _, g := range served {
				if g.evicted {
					t.Fatalf("%d sources: newcomers cost one its place that was answered", sources)
				}
			}
			if others > 0 {
				t.Errorf("%d sources: %d of newcomers were let in", sources, others)
			}
			time.Sleep(maxAnswer)
			if come(0) == nil {
				t.Errorf("%d sources: clients that do not answer keep others out", sources)
			}
			if g := come(limit + 1); sources == 1 && g == nil {
				t.Error("an address that has all places keeps another out")
			}
			e.close()
		}
	})
}
