// Tests with konnectivity's own client over sockets, in real time.

package konnectivity

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/server/connect"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// onSocket serves c on a unix socket, with real time.
func onSocket(t testing.TB, c Config) (socket string) {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(t.TempDir(), "s")
	l, err := connect.ListenUnix(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	serveUntilEnd(t, s, l)
	return socket
}

func serveUntilEnd(t testing.TB, s *Server, l net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func dialSocket(ctx context.Context, socket, addr string) (net.Conn, error) {
	return singleUse(ctx, addr, "unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func TestHTTP(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body) // the clipped rest is missing in the answer
		_, _ = w.Write(b)
	}))
	defer srv.Close()
	socket := onSocket(t, Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}})
	c := srv.Client()
	tr := c.Transport.(*http.Transport)
	tr.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) { return dialSocket(ctx, socket, addr) }
	defer tr.CloseIdleConnections()
	for _, size := range []int{0, 1, 100_000, 20 << 20} {
		body := bytes.Repeat([]byte{'x'}, size)
		resp, err := c.Post("https://example.com/", "", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d of %d bytes, %v", len(got), size, err)
		}
	}
}

// TestThousandDials makes dials of which half fail. A leaked goroutine fails TestMain.
func TestThousandDials(t *testing.T) {
	targets, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer targets.Close()
	go func() {
		for {
			c, err := targets.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	socket := onSocket(t, Config{Dial: func(ctx context.Context, _, addr string) (net.Conn, error) {
		if addr != "good:1" {
			return nil, &tunnel.DialError{Addr: addr, Code: tunnel.Refused}
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", targets.Addr().String())
	}})
	var group errgroup.Group
	group.SetLimit(16)
	for i := range 1000 {
		group.Go(func() error {
			if i%2 == 0 {
				if _, err := dialSocket(t.Context(), socket, "bad:1"); err == nil || err.Error() != "dial bad:1: connection refused" {
					return fmt.Errorf("dial %d: %w", i, err)
				}
				return nil
			}
			c, err := dialSocket(t.Context(), socket, "good:1")
			if err != nil {
				return fmt.Errorf("dial %d: %w", i, err)
			}
			if _, err = io.WriteString(c, "hello"); err == nil {
				_, err = io.ReadFull(c, make([]byte, 5))
			}
			// The client's Close may see the end of the call before the answer that came first.
			if end := c.Close(); end != nil && end.Error() != "tunnel closed" {
				err = errors.Join(err, end)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// Over TLS a client is identified by its certificate, and gets the reason of a refusal.
func TestMutualTLS(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "clients")
	conf := ca.Server(t)
	conf.NextProtos = []string{"h2"}
	callers := make(chan string, 1)
	s, err := New(Config{
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			callers <- auth.CallerOf(ctx).Name
			near, far := net.Pipe()
			go func() {
				_, _ = io.Copy(far, far)
				_ = far.Close()
			}()
			return near, nil
		},
		Authorize: func(s *tls.ConnectionState) error {
			if name := nameOf(s); name != "system:node:good" {
				return fmt.Errorf("%q may not connect to nodes", name)
			}
			return nil
		},
		Caller: nameOf,
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveUntilEnd(t, s, connect.ListenTLS(l, conf))
	dial := func(node string) (net.Conn, error) {
		c := ca.Client(t, node)
		c.NextProtos = nil
		return singleUse(t.Context(), "node-1:10250", l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(c)))
	}
	conn, err := dial("good")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	reads(t, conn, "hello")
	_ = conn.Close()
	if name := <-callers; name != "system:node:good" {
		t.Errorf("caller %q", name)
	}
	if _, err := dial("bad"); err == nil || err.Error() != `dial node-1:10250: "system:node:bad" may not connect to nodes` {
		t.Error(err)
	}
}

func nameOf(s *tls.ConnectionState) string {
	if s == nil || len(s.PeerCertificates) == 0 {
		return ""
	}
	return s.PeerCertificates[0].Subject.CommonName
}

// failsOnce is a listener whose first Accept finds no memory.
type failsOnce struct {
	net.Listener
	failed atomic.Bool
}

func (l *failsOnce) Accept() (net.Conn, error) {
	if !l.failed.Swap(true) {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.ENOMEM)}
	}
	return l.Listener.Accept()
}

// TestAcceptFails: a failed accept, which grpc takes for the end, is not the front end's.
func TestAcceptFails(t *testing.T) {
	s, err := New(Config{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, tunnel.NoNode }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := connect.ListenUnix(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	serveUntilEnd(t, s, &failsOnce{Listener: l})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := dialSocket(ctx, socket, "node-1:10250"); err == nil || !strings.Contains(err.Error(), tunnel.NoNode.Error()) {
		t.Errorf("a dial: %v", err)
	}
}
