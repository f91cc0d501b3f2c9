package tunneltest

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestNetwork(t *testing.T) {
	var n Network
	ctx := t.Context()
	if _, err := n.Dial(ctx, "tcp", "nobody"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial nobody: %v", err)
	}
	l, err := n.Listen(ctx, "tcp", "here")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = n.Listen(ctx, "tcp", "here"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen twice: %v", err)
	}
	c, err := n.Dial(ctx, "tcp", "here")
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if s.RemoteAddr() != c.LocalAddr() || c.RemoteAddr().String() != "here" {
		t.Errorf("addresses: %v, %v, %v", s.RemoteAddr(), c.LocalAddr(), c.RemoteAddr())
	}
	waiting, err := n.Dial(ctx, "tcp", "here")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("connection that nobody accepted: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if _, err := n.Listen(ctx, "tcp", "here"); err != nil {
		t.Errorf("listen again: %v", err)
	}
}

func TestDialGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Network
		if _, err := n.Listen(t.Context(), "tcp", "full"); err != nil {
			t.Fatal(err)
		}
		for range networkBacklog {
			if _, err := n.Dial(t.Context(), "tcp", "full"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.Dial(ctx, "tcp", "full"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial a full listener: %v", err)
		}
	})
}
