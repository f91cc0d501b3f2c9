package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/inproc"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

// spliced joins two connections and returns their outer ends.
func spliced(t *testing.T, ctx context.Context) (a, b *memnet.Conn, result func() (tunnel.Counts, error)) {
	t.Helper()
	a, ai := memnet.Pipe(memnet.Addr("a"), memnet.Addr("splice"))
	bi, b := memnet.Pipe(memnet.Addr("splice"), memnet.Addr("b"))
	var (
		wg  sync.WaitGroup
		n   tunnel.Counts
		err error
	)
	wg.Go(func() { n, err = tunnel.Splice(ctx, ai, bi) })
	return a, b, func() (tunnel.Counts, error) {
		wg.Wait()
		return n, err
	}
}

func TestSpliceKeepsHalfCloses(t *testing.T) {
	a, b, result := spliced(t, t.Context())
	question, answer := bytes.Repeat([]byte("q"), 300<<10), bytes.Repeat([]byte("a"), 500<<10)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := a.Write(question); err != nil {
			t.Error(err)
		}
		_ = a.CloseWrite()
	})
	if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, question) {
		t.Errorf("question: %d bytes, %v", len(got), err)
	}
	wg.Go(func() {
		if _, err := b.Write(answer); err != nil {
			t.Error(err)
		}
		_ = b.CloseWrite()
	})
	if got, err := io.ReadAll(a); err != nil || !bytes.Equal(got, answer) {
		t.Errorf("answer: %d bytes, %v", len(got), err)
	}
	wg.Wait()
	n, err := result()
	if err != nil || n != (tunnel.Counts{AtoB: 300 << 10, BtoA: 500 << 10}) {
		t.Errorf("%+v, %v", n, err)
	}
}

// If either side breaks, neither gets an orderly end.
func TestSpliceAborts(t *testing.T) {
	a, b, result := spliced(t, t.Context())
	_ = a.Abort()
	if _, err := b.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("other end: %v", err)
	}
	if _, err := result(); err == nil {
		t.Error("no error")
	}
}

func TestSpliceEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	a, b, result := spliced(t, ctx)
	cause := errors.New("enough")
	cancel(cause)
	if _, err := result(); !errors.Is(err, cause) {
		t.Errorf("error: %v", err)
	}
	for _, c := range []*memnet.Conn{a, b} {
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("an end: %v", err)
		}
	}
}

func TestHandoff(t *testing.T) {
	h := inproc.NewHandoff(tunnel.Addr("n:1"), 1)
	if h.Addr().String() != "n:1" || h.Addr().Network() != "hawser" {
		t.Errorf("address: %v", h.Addr())
	}
	a, _ := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	if err := h.Inject(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if got, err := h.Accept(); err != nil || got != net.Conn(a) {
		t.Errorf("accepted %v, %v", got, err)
	}
	waiting, peer := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	if err := h.Inject(t.Context(), waiting); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := h.Inject(ctx, a); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no room: %v", err)
	}
	if err := errors.Join(h.Close(), h.Close()); err != nil {
		t.Error(err)
	}
	if _, err := peer.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a connection nobody accepted: %v", err)
	}
	if err := h.Inject(t.Context(), a); !errors.Is(err, net.ErrClosed) {
		t.Errorf("inject after Close: %v", err)
	}
	if _, err := h.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after Close: %v", err)
	}
}

func TestHandoffCloseUnblocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := inproc.NewHandoff(tunnel.Addr("n:1"), 0)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := h.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("accept: %v", err)
			}
		})
		synctest.Wait()
		_ = h.Close()
		wg.Wait()
	})
}

func TestLobby(t *testing.T) {
	l := strangers.NewPending(2)
	ends := make([]*memnet.Conn, 4)
	var leave []func()
	for i := range ends {
		var c *memnet.Conn
		c, ends[i] = memnet.Pipe(memnet.Addr("c"), memnet.Addr("d"))
		if i == 2 {
			leave[1]() // the second is done; the first is still at it
		}
		leave = append(leave, l.Enter(c))
	}
	open := func(i int) bool {
		_ = ends[i].SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		_, err := ends[i].Read(make([]byte, 1))
		return errors.Is(err, os.ErrDeadlineExceeded)
	}
	for i, want := range []bool{false, true, true, true} {
		if open(i) != want {
			t.Errorf("connection %d: open %v", i, !want)
		}
	}
	leave[0]() // has lost its place; nothing happens
	l.Close()
	for i, want := range []bool{false, true, false, false} {
		if open(i) != want {
			t.Errorf("after Close, connection %d: open %v", i, !want)
		}
	}
	leave[3]() // likewise
	l.Close()
	late, end := memnet.Pipe(memnet.Addr("c"), memnet.Addr("d"))
	l.Enter(late)()
	if _, err := end.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("late comer: %v", err)
	}
}

// from is a connection's end with a remote address of that network.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// One source has all places while nobody else wants them, and never keeps anybody
// out; a client that has one place loses it to nobody who has more.
func TestLobbyIsFair(t *testing.T) {
	const limit = 100
	l := strangers.NewPending(limit)
	lost := make(map[string]int)
	enter := func(addr net.Addr) {
		near, far := memnet.Pipe(memnet.Addr("c"), memnet.Addr("d"))
		t.Cleanup(func() { _ = far.Close() })
		l.Enter(watched{from{near, addr}, func() { lost[addr.(*net.TCPAddr).IP.String()]++ }})
	}
	tcp := func(ip string, port int) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: port} }
	for i := range 10_000 {
		enter(tcp("192.0.2.1", i))
		if i%100 == 0 {
			enter(tcp("::ffff:192.0.2.1", i)) // the same
		}
	}
	if inside, cut := l.Count(); inside != limit || cut != 10_000 {
		t.Errorf("%d inside, %d lost their places", inside, cut)
	}
	for i := range 40 {
		enter(tcp(fmt.Sprintf("198.51.100.%d", i), 1))
		enter(tcp(fmt.Sprintf("2001:db8:0:1::%x", i), 1)) // one host's
		for j := range 100 {
			enter(tcp("192.0.2.1", j))
		}
	}
	for i := range 40 {
		if n := lost[fmt.Sprintf("198.51.100.%d", i)]; n != 0 {
			t.Errorf("an honest client lost its place %d times", n)
		}
	}
	if inside, _ := l.Count(); inside != limit {
		t.Errorf("%d inside", inside)
	}
	l.Close()
	if inside, _ := l.Count(); inside != 0 {
		t.Errorf("%d inside a closed pending", inside)
	}
}

// watched is a connection that tells when it is aborted.
type watched struct {
	net.Conn
	aborted func()
}

func (w watched) Abort() error { w.aborted(); return w.Close() }
