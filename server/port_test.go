package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// protocol is a transport's (RFC 7301).
const protocol = "hawser/2"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hello is the ClientHello of a TLS client with these protocols.
func hello(t testing.TB, alpn ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	c := tls.Client(&recorder{w: &b}, &tls.Config{ServerName: "server", NextProtos: alpn})
	if err := c.HandshakeContext(t.Context()); err == nil {
		t.Fatal("handshake with nobody succeeded")
	}
	return b.Bytes()
}

// A recorder is a connection that records writes.
type recorder struct {
	net.Conn
	w io.Writer
}

func (r *recorder) Write(p []byte) (int, error)      { return r.w.Write(p) }
func (r *recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (r *recorder) Close() error                     { return nil }
func (r *recorder) SetDeadline(time.Time) error      { return nil }
func (r *recorder) SetReadDeadline(time.Time) error  { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

// split splits the record of a ClientHello into many.
func split(b []byte, size int) (out []byte) {
	for body := b[5:]; len(body) > 0; {
		n := min(size, len(body))
		out = append(append(out, 22, 3, 1, byte(n>>8), byte(n)), body[:n]...)
		body = body[n:]
	}
	return out
}

func TestPeekHello(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   []byte
		alpn string
		fail bool
	}{
		{"tunnel", hello(t, protocol), protocol, false},
		{"browser", hello(t, "h2", "http/1.1"), "h2 http/1.1", false},
		{"no protocols", hello(t), "", false},
		{"in many records", split(hello(t, protocol), 7), protocol, false},
		{"with more behind", append(hello(t, "h2"), "early data"...), "h2", false},
		{"plain HTTP", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "", false},
		{"SSH", []byte("SSH-2.0-OpenSSH_9.9\r\n"), "", false},
		{"PROXY protocol, version 1", append([]byte("PROXY TCP4 192.0.2.1 192.0.2.2 40000 6443\r\n"), hello(t, protocol)...), "", true},
		{"PROXY protocol, version 2", append([]byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"), hello(t, protocol)...), "", true},
		{"empty lines", []byte("\r\n\r\n\r\n"), "", false},
		{"zeros", make([]byte, 1000), "", false},
		{"a record of another type", []byte{23, 3, 3, 0, 1, 0}, "", false},
		{"nothing", nil, "", true},
		{"half a hello", hello(t, "h2")[:60], "", true},
		{"a hello that never ends", split(append(make([]byte, 5), append([]byte{1, 0, 255, 255}, make([]byte, 60000)...)...), 1000), "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, r := range []io.Reader{bytes.NewReader(tc.in), iotest.OneByteReader(bytes.NewReader(tc.in))} {
				read, alpn, err := peekHello(t.Context(), r)
				if (err != nil) != tc.fail || strings.Join(alpn, " ") != tc.alpn {
					t.Fatalf("%q, %v", alpn, err)
				}
				rest, _ := io.ReadAll(r)
				if err == nil && !bytes.Equal(append(read, rest...), tc.in) {
					t.Error("what was read and what is left are not what was sent")
				}
				if len(read) > maxHello {
					t.Errorf("read %d bytes", len(read))
				}
			}
		})
	}
}

func FuzzPeekHello(f *testing.F) {
	f.Add(hello(f, protocol))
	f.Add(split(hello(f, "h2"), 10))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		read, _, err := peekHello(t.Context(), r)
		if err != nil {
			return
		}
		if len(read) > maxHello || !bytes.Equal(read, b[:len(read)]) || len(read)+r.Len() != len(b) {
			t.Fatalf("read %d of %d bytes, %d left", len(read), len(b), r.Len())
		}
	})
}

// runPort runs a Port on a network in memory.
func runPort(t *testing.T, c PortConfig) (*Port, *tunneltest.Network) {
	t.Helper()
	n := new(tunneltest.Network)
	var err error
	if c.Protocols == nil {
		c.Protocols = []string{protocol}
	}
	if c.Listener, err = n.Listen(t.Context(), "tcp", "port"); err != nil {
		t.Fatal(err)
	}
	p, err := NewPort(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return p, n
}

func dial(t *testing.T, n *tunneltest.Network, say []byte) net.Conn {
	t.Helper()
	c, err := n.Dial(t.Context(), "tcp", "port")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write(say); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPortSorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, n := runPort(t, PortConfig{Protocols: []string{protocol, "other"}, Older: true})
		for _, tc := range []struct {
			name string
			say  []byte
			to   net.Listener
		}{
			{"tunnel", hello(t, protocol), p.Tunnel(protocol)},
			{"tunnel among others", hello(t, "x", protocol), p.Tunnel(protocol)},
			{"another transport", hello(t, "other"), p.Tunnel("other")},
			{"the first of two", hello(t, "other", protocol), p.Tunnel("other")},
			{"older agent", hello(t, "hawser/1+link", "hawser/1"), p.Older()},
			{"older agent that does not resume", hello(t, "hawser/1"), p.Older()},
			{"kubectl", hello(t, "h2", "http/1.1"), p.API()},
			{"plain HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), p.API()},
		} {
			near := dial(t, n, tc.say)
			far, err := tc.to.Accept()
			if err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			got := make([]byte, len(tc.say))
			if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, tc.say) {
				t.Errorf("%s: the hello is not replayed: %v", tc.name, err)
			}
			if far.RemoteAddr() != near.LocalAddr() {
				t.Errorf("%s: remote address %v", tc.name, far.RemoteAddr())
			}
			time.Sleep(time.Hour) // the bubble's clock: no deadline is left behind
			if _, err := near.Write([]byte("later")); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(far, got[:5]); err != nil || string(got[:5]) != "later" {
				t.Errorf("%s: afterwards: %q, %v", tc.name, got[:5], err)
			}
			_ = tunnel.Abort(far)
			if n, err := near.Read(got); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: aborted, and the client gets %d, %v", tc.name, n, err)
			}
		}
	})
}

// A load balancer that sends the PROXY protocol is closed, and the log says what to do, once.
func TestPortNamesProxyProtocol(t *testing.T) {
	var log tunneltest.Log
	_, n := runPort(t, PortConfig{Log: log.Logger()})
	for range 3 {
		c := dial(t, n, []byte("PROXY TCP4 192.0.2.1 192.0.2.2 40000 6443\r\n"))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("there is an answer")
		}
	}
	if text := log.String(); strings.Count(text, "sends the PROXY protocol, which this server does not take: turn it off there") != 1 {
		t.Errorf("log: %s", text)
	}
}

// Injected connections are accepted by the API's listener unchanged.
func TestPortInjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := runPort(t, PortConfig{})
		a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
		defer b.Close()
		if err := p.API().Inject(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if got, err := p.API().Accept(); err != nil || got != net.Conn(a) {
			t.Errorf("%v, %v", got, err)
		}
		_ = a.Close()
	})
}

func TestSlowHellos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, n := runPort(t, PortConfig{HelloTimeout: 10 * time.Second, MaxPeeking: 100})
		var slow []net.Conn
		for range 300 {
			slow = append(slow, dial(t, n, hello(t)[:20]))
		}
		synctest.Wait()
		// A client that sends data is served at once nevertheless.
		start := time.Now()
		dial(t, n, hello(t, protocol))
		c, err := p.Tunnel(protocol).Accept()
		if err != nil || time.Since(start) != 0 {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		_ = c.Close()
		closed := func() (n int) {
			for _, c := range slow {
				_ = c.SetReadDeadline(time.Now().Add(time.Nanosecond))
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					n++
				}
			}
			return n
		}
		if n := closed(); n != 201 {
			t.Errorf("%d of 300 slow ones were cut off, 100 have room, one came after", n)
		}
		time.Sleep(10 * time.Second) // the bubble's clock
		synctest.Wait()
		if n := closed(); n != 300 {
			t.Errorf("after the time for hellos %d of 300 are cut off", n)
		}
	})
}

func TestPortShutsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(tunneltest.Network)
		l, err := n.Listen(t.Context(), "tcp", "port")
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPort(PortConfig{Listener: l})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := p.Run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
		dial(t, n, hello(t)[:20])      // at its hello
		dial(t, n, hello(t, protocol)) // waits to be accepted
		for range handoffs + 10 {      // there is no room for all of them to wait
			dial(t, n, hello(t, "http/1.1"))
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		if _, err := p.API().Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept: %v", err)
		}
		if _, err := n.Dial(t.Context(), "tcp", "port"); err == nil {
			t.Error("the port is still open")
		}
	})
}

func TestPortReportsFailure(t *testing.T) {
	want := errors.New("broken")
	p, err := NewPort(PortConfig{Listener: &failing{errs: []error{want}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); !errors.Is(err, want) {
		t.Errorf("run: %v", err)
	}
	if _, err := NewPort(PortConfig{}); err == nil {
		t.Error("no listener: no error")
	}
}

// TestPortOutOfMemory: a port goes on when the system has no memory for a connection.
func TestPortOutOfMemory(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS} {
		err := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", errno)}
		later := errors.New("the next")
		p, perr := NewPort(PortConfig{Listener: &failing{errs: []error{err, later}}})
		if perr != nil {
			t.Fatal(perr)
		}
		if err := p.Run(t.Context()); !errors.Is(err, later) {
			t.Errorf("%v: run: %v", errno, err)
		}
	}
}
