// What holds against both servers: the streams' promises, and the errors.

package overssh

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
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"github.com/hawser-project/hawser/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var servers = []struct {
	name  string
	start func(testing.TB) *lab
}{{"Own", own}, {"OpenSSH", openSSH}}

// TestStreams is as much of tunneltest as there is here: only one end opens.
func TestStreams(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			d, _ := run(t, l.config(t))
			t.Run("Conn", func(t *testing.T) { testConn(t, d) })
			for _, c := range []struct {
				name string
				run  func(*testing.T, *Session)
			}{
				{"HalfClose", testHalfClose},
				{"HalfCloseBulk", testHalfCloseBulk},
				{"CloseDelivers", testCloseDelivers},
				{"CloseEndsPeerWrites", testCloseEndsPeerWrites},
				{"Abort", testAbort},
				{"ManyStreams", testManyStreams},
				{"StalledReader", testStalledReader},
				{"TargetErrors", testTargetErrors},
			} {
				t.Run(c.name, func(t *testing.T) { c.run(t, d) })
			}
		})
	}
}

func testConn(t *testing.T, d *Session) {
	ln := listen(t)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		near, far := pair(t, d, ln)
		return near, far, func() { _ = near.Close(); _ = far.Close() }, nil
	})
}

func testHalfClose(t *testing.T, d *Session) {
	near, far := pair(t, d, listen(t))
	for _, d := range []struct{ from, to tunnel.Stream }{{near, far}, {far, near}} {
		if _, err := d.from.Write([]byte("said")); err != nil {
			t.Fatal(err)
		}
		if err := d.from.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.from.Write([]byte("more")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write after CloseWrite: %v", err)
		}
		finishes(t, "read to the end", func() {
			if got, err := io.ReadAll(d.to); err != nil || string(got) != "said" {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
}

func testHalfCloseBulk(t *testing.T, d *Session) {
	near, far := pair(t, d, listen(t))
	if err := near.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	const size = 16 << 20
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.Copy(far, io.LimitReader(pattern{}, size)); err != nil {
			t.Errorf("write: %v", err)
		}
		_ = far.Close()
	})
	finishes(t, "bulk", func() {
		if n, err := io.Copy(io.Discard, near); n != size || err != nil {
			t.Errorf("read %d bytes, %v", n, err)
		}
	})
	wg.Wait()
}

// What was written before Close arrives, and then the end.
func testCloseDelivers(t *testing.T, d *Session) {
	near, far := pair(t, d, listen(t))
	want := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	if _, err := near.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	finishes(t, "read", func() {
		if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, want) {
			t.Errorf("read %d bytes of %d, %v", len(got), len(want), err)
		}
	})
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after Close: %v", err)
	}
	if _, err := near.Write(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after Close: %v", err)
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

func testManyStreams(t *testing.T, d *Session) {
	const n = 300 // sshd is a process with few descriptors
	ln := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range n {
			c, err := ln.Accept()
			if err != nil {
				t.Errorf("accept: %v", err)
				return
			}
			wg.Go(func() {
				if _, err := io.Copy(c, c); err != nil {
					t.Errorf("echo: %v", err)
				}
				_ = c.Close()
			})
		}
	})
	ctx, open := within(t), make(chan struct{}) // closed when all are
	var opened sync.WaitGroup
	opened.Add(n)
	for i := range n {
		wg.Go(func() {
			st, err := d.Dial(ctx, "tcp", ln.Addr().String())
			opened.Done()
			if err != nil {
				t.Errorf("connect: %v", err)
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
	finishes(t, "many streams", wg.Wait)
}

// One reader that never reads costs its neighbours nothing.
func testStalledReader(t *testing.T, d *Session) {
	ln := listen(t)
	stalled, _ := pair(t, d, ln)
	if err := stalled.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(stalled, pattern{})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("filling the window: %d bytes, %v", n, err)
	}
	if n > 64<<20 {
		t.Errorf("a stream nobody reads took %d bytes", n)
	}
	for range 4 {
		near, far := pair(t, d, ln)
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
	_ = tunnel.Abort(stalled)
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
