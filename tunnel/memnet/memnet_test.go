package memnet

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := Pipe(Addr("a"), Addr("b"))
		return a, b, func() { _ = a.Close(); _ = b.Close() }, nil
	})
}

func TestHalfClose(t *testing.T) {
	a, b := Pipe(Addr("a"), Addr("b"))
	defer a.Close()
	defer b.Close()
	if _, err := a.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(b); err != nil || string(got) != "question" {
		t.Fatalf("read %q, %v", got, err)
	}
	if _, err := a.Write([]byte("more")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write after CloseWrite: %v", err)
	}
	if _, err := b.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	_ = b.CloseWrite()
	if got, err := io.ReadAll(a); err != nil || string(got) != "answer" {
		t.Fatalf("read %q, %v", got, err)
	}
}

func TestEnds(t *testing.T) {
	for _, tc := range []struct {
		name                          string
		end                           func(*Conn) error
		nearRead, farRead, nearW, far error
		keeps                         bool // what was written before is still delivered
	}{
		{"close", (*Conn).Close, net.ErrClosed, io.EOF, net.ErrClosed, syscall.EPIPE, true},
		{"abort", (*Conn).Abort, net.ErrClosed, syscall.ECONNRESET, net.ErrClosed, syscall.ECONNRESET, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := Pipe(Addr("a"), Addr("b"))
			if _, err := a.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if err := tc.end(a); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 8)
			if n, _ := b.Read(buf); tc.keeps != (n == 1) {
				t.Errorf("far end read %d bytes", n)
			}
			if _, err := b.Read(buf); !errors.Is(err, tc.farRead) {
				t.Errorf("far read: %v", err)
			}
			if _, err := b.Write(buf); !errors.Is(err, tc.far) {
				t.Errorf("far write: %v", err)
			}
			if _, err := a.Read(buf); !errors.Is(err, tc.nearRead) {
				t.Errorf("near read: %v", err)
			}
			if _, err := a.Write(buf); !errors.Is(err, tc.nearW) {
				t.Errorf("near write: %v", err)
			}
		})
	}
}

// A stalled connection takes a bounded number of bytes and delivers none.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe(Addr("a"), Addr("b"))
		a.Stall(true)
		start := time.Now()
		_ = a.SetWriteDeadline(start.Add(time.Second))
		n, err := a.Write(make([]byte, 2*window))
		if n != window || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("wrote %d, %v after %v", n, err, time.Since(start))
		}
		_ = b.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := b.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %d, %v", n, err)
		}
		_ = b.SetReadDeadline(time.Time{})
		a.Stall(false)
		if n, err := b.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("read after the stall: %d, %v", n, err)
		}
	})
}

// An end with a reason comes after what was written, and the first reason counts.
func TestEndsWithErrors(t *testing.T) {
	near, far := Pipe(Addr("near"), Addr("far"))
	if _, err := far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	far.CloseWriteWithError(syscall.EHOSTDOWN)
	far.CloseReadWithError(syscall.ENOTCONN)
	far.CloseWriteWithError(io.EOF)
	far.CloseReadWithError(syscall.EPIPE)
	if b, err := io.ReadAll(near); string(b) != "x" || !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("read %q, %v", b, err)
	}
	if _, err := near.Write([]byte("y")); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("write: %v", err)
	}
}

// An abort with a reason tells it to whoever reads, writes, or waits for a reset.
func TestAbortsWithError(t *testing.T) {
	near, far := Pipe(Addr("near"), Addr("far"))
	told := make(chan error, 1)
	near.OnReset(func(err error) { told <- err })
	far.OnReset(func(err error) { t.Errorf("the end that aborts: %v", err) })
	far.AbortWithError(syscall.EHOSTDOWN)
	_ = far.Abort() // the first reason counts
	_, rerr := near.Read(make([]byte, 1))
	_, werr := near.Write([]byte("x"))
	for what, err := range map[string]error{"read": rerr, "write": werr, "reset": <-told} {
		if !errors.Is(err, syscall.EHOSTDOWN) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read of the end that aborts: %v", err)
	}
}

// The end that aborts learns that by itself, also if the other end closes at once.
func TestAbortBesideClose(t *testing.T) {
	for range 500 {
		near, far := Pipe(Addr("near"), Addr("far"))
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_, _ = far.Read(make([]byte, 1))
			_ = far.Close()
		}()
		read := make(chan error, 1)
		go func() {
			_, err := near.Read(make([]byte, 1))
			_, werr := near.Write([]byte("x"))
			read <- err
			if werr == nil {
				t.Error("a write succeeded")
			}
		}()
		_ = near.Abort()
		if err := <-read; !errors.Is(err, net.ErrClosed) {
			t.Fatalf("read: %v", err)
		}
		<-closed
	}
}
