package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
)

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// lingersOn serves one request of a client over TCP and TLS: h gets the connection. ended is closed
// when the request has been served.
func lingersOn(t *testing.T, h func(net.Conn)) (client *tls.Conn, ended chan struct{}) {
	t.Helper()
	ended = make(chan struct{})
	lingering := lingers(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		h(conn)
	}))
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		lingering.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	raw, err := new(net.Dialer).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if tcp, ok := raw.(*net.TCPConn); !ok || tcp.SetReadBuffer(32<<10) != nil {
		t.Fatal("its buffer is not small")
	}
	client = tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
	t.Cleanup(func() { client.Close() })
	if err := client.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return client, ended
}

// isEnded fails the test unless the request ends.
func isEnded(t *testing.T, ended chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the request goes on")
	}
}

// TestLinger: a client of which the server has not read all gets all that was written, however late
// it reads.
func TestLinger(t *testing.T) {
	const all, late = 512 << 10, 128 << 10
	closed := make(chan struct{})
	client, ended := lingersOn(t, func(c net.Conn) {
		defer close(closed)
		_ = innermost(c).SetWriteBuffer(2 * late) // or the write waits for the client
		if _, err := io.CopyN(c, zeros{}, all); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after Close: %v", err)
		}
		if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after Close: %v", err)
		}
	})
	if _, err := client.Write(make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(client, zeros{})
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, client, all-late); err != nil {
		t.Fatal(err)
	}
	<-closed
	if n, err := io.Copy(io.Discard, client); n != late || err != nil {
		t.Errorf("the last %d bytes: got %d, %v", late, n, err)
	}
	select {
	case err := <-sent:
		t.Fatalf("the client cannot send: %v", err)
	case <-ended:
		t.Error("the server does not wait for the client's end")
	default:
	}
	_ = client.NetConn().Close()
	isEnded(t, ended)
	<-sent
}

// innermost is the connection below all others.
func innermost(c net.Conn) *net.TCPConn {
	if l, ok := c.(*lingeringConn); ok {
		c = l.Conn
	}
	for {
		if tcp, ok := c.(*net.TCPConn); ok {
			return tcp
		}
		c = below(c)
	}
}

// TestLingerEndsRead: a Read that is under way ends with the server's end.
func TestLingerEndsRead(t *testing.T) {
	read := make(chan error, 1)
	client, ended := lingersOn(t, func(c net.Conn) {
		reads := make(chan struct{})
		go func() {
			b := make([]byte, 1)
			_, err := c.Read(b)
			close(reads)
			for err == nil {
				_, err = c.Read(b)
			}
			read <- err
		}()
		<-reads
		_ = c.Close()
		_ = c.SetDeadline(time.Time{}) // as the library does, which has not noticed
		if err := <-read; !errors.Is(err, net.ErrClosed) {
			t.Errorf("the Read ends with %v", err)
		}
	})
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the client reads %v", err)
	}
	_ = client.Close()
	isEnded(t, ended)
}

// TestLingerCloses: a connection that takes nothing, or that is closed after the request, is closed
// at once.
func TestLingerCloses(t *testing.T) {
	var conn net.Conn
	client, ended := lingersOn(t, func(c net.Conn) { conn = c })
	isEnded(t, ended)
	_ = conn.Close()
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("closed after the request: the client reads %v", err)
	}
	if err := innermost(conn).Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed after the request: %v", err)
	}
	_, ended = lingersOn(t, func(c net.Conn) {
		_ = c.SetWriteDeadline(time.Unix(1, 0)) // fails if the client is gone
		if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		_ = c.Close()
	})
	isEnded(t, ended)
}

// A pipe is a connection in memory that can end its direction.
type pipe struct{ net.Conn }

func (pipe) CloseWrite() error { return nil }

// TestLingerBounds: a connection is closed while the client sends nothing, and after a time.
func TestLingerBounds(t *testing.T) {
	for what, tc := range map[string]struct {
		sends bool
		want  time.Duration
	}{"silent": {false, lingerIdle}, "sends without end": {true, lingerTime}} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				c := &lingeringConn{Conn: pipe{near}}
				if tc.sends {
					go func() { _, _ = io.Copy(far, zeros{}) }()
				}
				_ = c.Close()
				began := time.Now()
				c.linger()
				if took := time.Since(began); took < tc.want || took > tc.want+lingerPause {
					t.Errorf("closed after %v, want %v", took, tc.want)
				}
			})
		})
	}
}

// TestDeafExec: the output of a command that does not read its stdin arrives whole, and so does its
// exit code.
func TestDeafExec(t *testing.T) {
	b := start(t, nil)
	for how, executor := range executors {
		t.Run(how, func(t *testing.T) {
			e, err := executor(b, b.podURL(t, "web", "exec", &corev1.PodExecOptions{Command: []string{"deaf"}, Stdin: true, Stdout: true}))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var out bytes.Buffer
			err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: io.LimitReader(zeros{}, lingerBytes), Stdout: &out})
			checkExec(t, err, 42, "command terminated with")
			if out.Len() != much {
				t.Errorf("got %d of %d bytes", out.Len(), much)
			}
		})
	}
}
