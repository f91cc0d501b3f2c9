// Tests of tunnels that are cut off, at either end.

package connect

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// secure runs a front end over TLS and returns how to reach it.
func secure(t *testing.T, c Config) (addr string, conf *tls.Config) {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	keys := httptest.NewTLSServer(nil)
	defer keys.Close()
	client, _ := keys.Client().Transport.(*http.Transport)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- s.Serve(ctx, ListenTLS(l, &tls.Config{Certificates: keys.TLS.Certificates, MinVersion: tls.VersionTLS13}))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conf = client.TLSClientConfig.Clone()
	conf.ServerName = "example.com"
	return l.Addr().String(), conf
}

// connectTLS opens a tunnel over TLS and returns both of its ends.
func connectTLS(t *testing.T, header string) (client *tls.Conn, r *bufio.Reader, target *net.TCPConn) {
	t.Helper()
	targets, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer targets.Close()
	addr, conf := secure(t, Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", targets.Addr().String())
	}})
	c, err := (&tls.Dialer{Config: conf}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tunnel.Abort(c) })
	client, _ = c.(*tls.Conn)
	if _, err := io.WriteString(client, "CONNECT node-1:10250 HTTP/1.1\r\nHost: x\r\n"+header+"\r\n"); err != nil {
		t.Fatal(err)
	}
	far, err := targets.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	target, _ = far.(*net.TCPConn)
	r = bufio.NewReader(client)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	for _, c := range []net.Conn{client, far} {
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	return client, r, target
}

// After a reset by the target the client does not see a complete answer.
func TestCutAtTheTarget(t *testing.T) {
	client, r, target := connectTLS(t, "")
	if _, err := io.WriteString(client, "?"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(target, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(target, "half of "); err != nil {
		t.Fatal(err)
	}
	expect(t, r, "half of ")
	if err := tunnel.Abort(target); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(r); err == nil {
		t.Errorf("the client read %q and an end in good order", rest)
	}
}

// After a cut by the client the target does not see an end: by a reset, or without
// close_notify, as when the kernel closes the connections of a killed process.
func TestCutAtTheClient(t *testing.T) {
	for how, cut := range map[string]func(*tls.Conn) error{
		"reset":  func(c *tls.Conn) error { return tunnel.Abort(c) },
		"killed": func(c *tls.Conn) error { return c.NetConn().Close() },
		"killed while it reads on": func(c *tls.Conn) error {
			raw, _ := c.NetConn().(*net.TCPConn)
			return raw.CloseWrite()
		},
	} {
		t.Run(how, func(t *testing.T) {
			client, _, target := connectTLS(t, "")
			if _, err := io.WriteString(client, "half of "); err != nil {
				t.Fatal(err)
			}
			expect(t, bufio.NewReaderSize(target, 16), "half of ")
			if err := cut(client); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(target); err == nil {
				t.Errorf("the target read %q and an end in good order", rest)
			}
		})
	}
}

// An end of one direction is passed on as an end of that direction.
func TestEndsOverTLS(t *testing.T) {
	client, r, target := connectTLS(t, "")
	if _, err := io.WriteString(client, "question"); err != nil {
		t.Fatal(err)
	}
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(target); err != nil || string(got) != "question" {
		t.Fatalf("target: %q, %v", got, err)
	}
	if _, err := io.WriteString(target, "answer"); err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "answer" {
		t.Errorf("client: %q, %v", got, err)
	}
}

// TestIdleTunnelHoldsNothing has a client and a target talk, and then be silent.
func TestIdleTunnelHoldsNothing(t *testing.T) {
	targets, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer targets.Close()
	socket := serveHolding(t, Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", targets.Addr().String())
	}}, 0)
	// Data in the packet of the request is passed on.
	resp, client, _ := request(t, socket, connectRequest+"early")
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	target, err := targets.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	if _, err := io.ReadFull(target, make([]byte, len("early"))); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 10_000, 1 << 20, 10_000} {
		tunneltest.Says(t, client, target, size)
		tunneltest.Says(t, target, client, size)
		tunneltest.HoldsAtMost(t, 0)
	}
}

// TestClientLeavesItsAnswer: a client that closes its connection without having read the
// answer resets it. The reset is read once, during the wait for the client's data, and the
// target gets a cut and not an end.
func TestClientLeavesItsAnswer(t *testing.T) {
	near, far := memnet.Pipe(memnet.Addr("server"), memnet.Addr("target"))
	socket := serveHolding(t, Config{Dial: func(context.Context, string, string) (net.Conn, error) { return near, nil }}, 24*time.Hour)
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = io.WriteString(conn, connectRequest); err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the target reads %v", err)
	}
}
