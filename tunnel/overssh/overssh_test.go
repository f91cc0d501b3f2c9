// What holds against both servers: the streams' promises, and the errors.

package overssh

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var servers = []struct {
	name  string
	start func(testing.TB) *lab
}{{"Own", own}, {"OpenSSH", openSSH}}

// TestConformance runs the suite of all transports over one target, whose connections are the
// accepted streams. It leaves out IdleSplices: a stream that waits holds 4 KiB, as the package
// comment says.
func TestConformance(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			tunneltest.RunDialer(t, Capabilities, l.conformance, "IdleSplices")
		})
	}
}

// TestStreams is what the suite asks only of streams that can be reset, and the errors of sshd.
func TestStreams(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			d, _ := run(t, l.config(t))
			for _, c := range []struct {
				name string
				run  func(*testing.T, *Session)
			}{
				{"CloseEndsPeerWrites", testCloseEndsPeerWrites},
				{"Abort", testAbort},
				{"TargetErrors", testTargetErrors},
			} {
				t.Run(c.name, func(t *testing.T) { c.run(t, d) })
			}
		})
	}
}

func testCloseEndsPeerWrites(t *testing.T, d *Session) {
	near, far := pair(t, d, listen(t))
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	finishes(t, "writing to a closed stream", func() {
		if _, err := io.Copy(far, pattern{}); err == nil {
			t.Error("no error")
		}
	})
}

// An aborted stream ends at both ends although neither reads.
func testAbort(t *testing.T, d *Session) {
	ln := listen(t)
	near, far := pair(t, d, ln)
	if _, err := near.Write([]byte("half a sente")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read: %v", err)
		}
	})
	if err := tunnel.Abort(near); err != nil {
		t.Fatal(err)
	}
	finishes(t, "read of an aborted stream", wg.Wait)
	finishes(t, "write", func() {
		if _, err := io.Copy(far, pattern{}); err == nil {
			t.Error("wrote to an aborted stream")
		}
	})
	pair(t, d, ln) // the session is none the worse
}

func testTargetErrors(t *testing.T, d *Session) {
	ln := listen(t)
	gone := ln.Addr().String()
	_ = ln.Close()
	_, port, _ := net.SplitHostPort(gone)
	full := fullBacklog(t)
	for _, tc := range []struct {
		network, addr string
		want          error
	}{
		{"tcp", gone, tunnel.Refused},
		{"tcp", gone, syscall.ECONNREFUSED},
		{"tcp", "node-1:" + port, tunnel.Refused},
		{"tcp", "224.0.0.1:1", tunnel.Unreachable}, // the kernel opens no TCP to a group
		{"tcp", "224.0.0.1:1", syscall.EHOSTUNREACH},
		{"tcp", full, tunnel.Timeout},
		{"tcp", full, os.ErrDeadlineExceeded},
		{"tcp", "forbidden:1", tunnel.Denied},
		{"tcp", "no-port", tunnel.Invalid},
		{"udp", gone, tunnel.Invalid},
	} {
		ctx, cancel := within(t), context.CancelFunc(func() {})
		if tc.addr == full {
			ctx, cancel = context.WithTimeout(ctx, time.Second)
		}
		_, err := d.Dial(ctx, tc.network, tc.addr)
		cancel()
		var de *tunnel.DialError
		if !errors.Is(err, tc.want) || !errors.As(err, &de) || de.Addr != tc.addr {
			t.Errorf("%s %s: %v, want %v", tc.network, tc.addr, err, tc.want)
		}
	}
}

// fullBacklog is an address at which somebody listens and takes no connection.
func fullBacklog(t *testing.T) string {
	t.Helper()
	ln := listen(t)
	raw, err := ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 0) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	for range 16 { // a few fit in the queue
		c, err := net.DialTimeout("tcp", ln.Addr().String(), 2*time.Second)
		if err != nil {
			return ln.Addr().String()
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("a queue without room takes 16 connections")
	return ""
}

// try dials a target once.
func try(t *testing.T, d *Session, target string) error {
	t.Helper()
	st, err := d.Dial(within(t), "tcp", target)
	if err == nil {
		_ = st.Close()
	}
	return err
}
