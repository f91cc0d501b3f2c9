package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
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
	h := memnet.NewHandoff(tunnel.Addr("n:1"), 1)
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
		h := memnet.NewHandoff(tunnel.Addr("n:1"), 0)
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
