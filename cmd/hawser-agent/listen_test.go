package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

func TestListenOptions(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		err  string // in the error; empty means none
	}{
		"loopback":        {[]string{"--apiserver-listen", "127.0.0.1:6443"}, ""},
		"IPv6 loopback":   {[]string{"--apiserver-listen", "[::1]:6443"}, ""},
		"everywhere":      {[]string{"--apiserver-listen", "0.0.0.0:6443"}, "want a loopback address such as 127.0.0.1:6443"},
		"another address": {[]string{"--apiserver-listen", "192.0.2.1:7443"}, "want a loopback address such as 127.0.0.1:7443"},
		"no address":      {[]string{"--apiserver-listen", ":6443"}, "want ADDRESS:PORT"},
		"a name":          {[]string{"--apiserver-listen", "localhost:6443"}, "want ADDRESS:PORT"},
		"no tunnel":       {[]string{"--apiserver-listen", "127.0.0.1:6443", "--transport", "ssh"}, "--transport ssh"},
		"pods":            {[]string{"--apiserver-listen", "127.0.0.1:6443", "--apiserver-listen-in", "/run/netns"}, ""},
		"pods, where":     {[]string{"--apiserver-listen-in", "/run/netns"}, "--apiserver-listen-in /run/netns needs --apiserver-listen"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(t, tt.args...); tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}

// serveAPI runs an apiPort until the function that it returns is called, or the test ends.
func serveAPI(t *testing.T, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (at string, stop func()) {
	t.Helper()
	l, err := listenAt(t.Context(), "--apiserver-listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String(), together(t, (&apiPort{listener: l, dial: dial, suspect: func() {}, log: slog.New(slog.DiscardHandler)}).run)
}

func dialTCP(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil { // nothing here needs as long
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// What a client sends and ends reaches the API server, whose answer reaches the client
// after that.
func TestAPIPort(t *testing.T) {
	api, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	ready := make(chan struct{})
	at, stop := serveAPI(t, func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network != "tcp" || addr != "apiserver:443" {
			t.Errorf("dials %s %s", network, addr)
		}
		<-ready // the tunnel is away
		return new(net.Dialer).DialContext(ctx, "tcp", api.Addr().String())
	})
	c := dialTCP(t, at)
	if _, err := io.WriteString(c, "question"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	close(ready)
	s, err := api.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if b, err := io.ReadAll(s); string(b) != "question" || err != nil {
		t.Errorf("the API server got %q, %v", b, err)
	}
	if _, err := io.WriteString(s, "answer"); err != nil {
		t.Fatal(err)
	}
	if err := s.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); string(b) != "answer" || err != nil {
		t.Errorf("the client got %q, %v", b, err)
	}
	// What is open is cut at the end.
	open := dialTCP(t, at)
	if s, err = api.Accept(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	stop()
	if _, err := open.Read(make([]byte, 1)); err == nil {
		t.Error("open after the end")
	}
}

// A client gets no answer that looks complete while the tunnel is away for too long.
func TestAPIPortWithoutTunnel(t *testing.T) {
	there := make(chan struct{})
	at, _ := serveAPI(t, func(context.Context, string, string) (net.Conn, error) {
		<-there
		return nil, errors.New("not connected")
	})
	c := dialTCP(t, at)
	close(there)
	if b, err := io.ReadAll(c); err == nil {
		t.Errorf("got %q and an orderly end", b)
	}
}

// There are so many connections and no more: another one replaces the oldest, so that who
// holds all of them keeps nobody out.
func TestAPIPortIsBounded(t *testing.T) {
	inside := make(chan net.Conn, maxAPIConns)
	at, _ := serveAPI(t, func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		inside <- far
		return near, nil
	})
	var held []*net.TCPConn
	for range maxAPIConns {
		held = append(held, dialTCP(t, at))
		defer (<-inside).Close()
	}
	c := dialTCP(t, at)
	s := <-inside
	defer s.Close()
	if _, err := io.WriteString(c, "question"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 8)
	if _, err := io.ReadFull(s, b); err != nil || string(b) != "question" {
		t.Errorf("the API server got %q, %v", b, err)
	}
	if _, err := held[0].Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the oldest: %v, want a reset", err)
	}
	if _, err := io.WriteString(held[1], "x"); err != nil {
		t.Errorf("the next: %v", err)
	}
}

// While the tunnel is away, a connection that is replaced waits for it no longer.
func TestAPIPortReplacesWaiting(t *testing.T) {
	dialing, ended := make(chan struct{}, maxAPIConns), make(chan struct{}, maxAPIConns)
	at, _ := serveAPI(t, func(ctx context.Context, _, _ string) (net.Conn, error) {
		dialing <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return nil, context.Cause(ctx)
	})
	for range maxAPIConns {
		dialTCP(t, at)
		<-dialing
	}
	for range 2 * maxReplaced {
		dialTCP(t, at)
		<-dialing
		<-ended
	}
}

// TestAPIPortSuspects: a server is suspected once for a client of root's that gets no answer through
// it, or whose dial fails there; not for others, for who says nothing, and while there is no tunnel.
func TestAPIPortSuspects(t *testing.T) {
	echo := func(c net.Conn) { _, _ = io.Copy(c, c) }
	mute := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	late := func(c net.Conn) {
		time.Sleep(answerWithin - time.Second)
		_, _ = io.Copy(c, c)
	}
	for name, tt := range map[string]struct {
		api  func(net.Conn) // what answers; nil means that the dial fails with err
		err  error
		says string
		root bool
		want int
		dial time.Duration // how long it takes
	}{
		"no answer":          {api: mute, says: "hello", root: true, want: 1},
		"no answer, a user":  {api: mute, says: "hello"},
		"nothing was asked":  {api: mute, root: true},
		"answers":            {api: echo, says: "hello", root: true},
		"answers in time":    {api: late, says: "hello", root: true},
		"refused":            {err: tunnel.Refused, root: true, want: 1},
		"refused, to a user": {err: tunnel.Refused},
		"slow":               {err: tunnel.Timeout, root: true, want: 1},
		"no tunnel":          {err: tunnel.Parked, root: true},
		"another answers":    {api: echo, says: "hello", root: true, dial: answerWithin / 2, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				suspected := 0
				p := &apiPort{listener: fakeListener{}, log: slog.New(slog.DiscardHandler), suspect: func() { suspected++ }}
				p.dial = func(context.Context, string, string) (net.Conn, error) {
					time.Sleep(tt.dial) // the bubble's clock
					if tt.err != nil {
						return nil, tt.err
					}
					near, far := memnet.Pipe(tunnel.Addr("near"), tunnel.Addr("far"))
					go tt.api(far)
					return near, nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				near, far := memnet.Pipe(tunnel.Addr("kubelet"), tunnel.Addr("port"))
				ended := make(chan struct{})
				go func() { p.serve(ctx, far, tt.root); close(ended) }()
				if tt.says != "" {
					if _, err := io.WriteString(near, tt.says); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(3 * answerWithin)
				synctest.Wait()
				if suspected != tt.want {
					t.Errorf("suspected %d times, want %d", suspected, tt.want)
				}
				cancel()
				<-ended
				_ = near.Close()
			})
		})
	}
}

// A fakeListener has an address.
type fakeListener struct{ net.Listener }

func (fakeListener) Addr() net.Addr { return tunnel.Addr("127.0.0.1:6443") }
