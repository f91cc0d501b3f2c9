package strangers_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

// failing fails for as long as it has errors, and then has a connection, or is closed.
type failing struct {
	net.Listener
	errs   []error
	closed atomic.Bool
}

func (l *failing) Accept() (net.Conn, error) {
	if l.closed.Load() {
		return nil, net.ErrClosed
	}
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, err
	}
	return &net.TCPConn{}, nil
}

func (l *failing) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (l *failing) Close() error   { l.closed.Store(true); return nil }

func accept(errno syscall.Errno) error {
	return &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", errno)}
}

// TestSteady: the next connection is accepted whatever the system said of those before it, after
// pauses that grow.
func TestSteady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var errs []error
		for _, errno := range []syscall.Errno{
			syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE, syscall.EPERM, syscall.EACCES, syscall.ECONNABORTED, syscall.ENETDOWN, syscall.EPROTO,
		} {
			errs = append(errs, accept(errno))
		}
		var log bytes.Buffer
		l := strangers.Steady(&failing{errs: errs}, slog.New(slog.NewTextHandler(&log, nil)))
		began := time.Now()
		if c, err := l.Accept(); c == nil || err != nil {
			t.Errorf("%v, %v", c, err)
		}
		if took := time.Since(began); took != 5*time.Millisecond*255+time.Second {
			t.Errorf("pauses of %v", took)
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "addr=127.0.0.1:1") || !strings.Contains(text, "cannot allocate memory") {
			t.Errorf("logged %s", text)
		}
		l = strangers.Steady(&failing{errs: []error{accept(syscall.ENOMEM)}}, slog.New(slog.DiscardHandler))
		began = time.Now()
		if _, err := l.Accept(); err != nil || time.Since(began) != 5*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestSteadyEnds: a listener that is closed, or can never accept, says so.
func TestSteadyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := strangers.Steady(&failing{errs: []error{accept(syscall.EMFILE)}}, slog.New(slog.DiscardHandler))
		go func() {
			time.Sleep(time.Millisecond) // the bubble's clock
			_ = l.Close()
			_ = l.Close()
		}()
		began := time.Now()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) || time.Since(began) != time.Millisecond {
			t.Errorf("closed: %v after %v", err, time.Since(began))
		}
	})
	other := errors.New("no more")
	for _, err := range []error{accept(syscall.EBADF), accept(syscall.EINVAL), net.ErrClosed, other} {
		if _, got := strangers.Steady(&failing{errs: []error{err}}, slog.New(slog.DiscardHandler)).Accept(); !errors.Is(got, err) {
			t.Errorf("got %v, want %v", got, err)
		}
	}
}
