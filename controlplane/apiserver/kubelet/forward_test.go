package kubelet

// Tests of how port-forwards end that tunnel SPDY in WebSocket frames.

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/websocket"
)

// A tellingConn tells when it is closed.
type tellingConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *tellingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// A forwardBench has a kubelet that sends something to whoever forwards a port.
type forwardBench struct {
	*bench
	net   *weak
	conns chan *tellingConn // to the kubelet
	sent  []byte
}

// startForward starts one whose connections fail with err when they are cut. A kubelet that
// stays does not close its connections.
func startForward(t *testing.T, err error, stays bool) *forwardBench {
	t.Helper()
	f := &forwardBench{net: &weak{err: err}, conns: make(chan *tellingConn, 1), sent: make([]byte, much)}
	_, _ = rand.NewChaCha8([32]byte{2}).Read(f.sent) // never fails
	f.bench = start(t, func(o *Options) {
		f.net.dial = o.DialEarly
		o.DialEarly = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := f.net.open(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			told := &tellingConn{Conn: c, closed: make(chan struct{})}
			f.conns <- told
			return told, nil
		}
	})
	k := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n")
		if _, err := rw.Write(f.sent); err != nil || rw.Flush() != nil {
			t.Error("the kubelet could not send all")
		}
		if stays {
			_, _ = io.Copy(io.Discard, c) // until it is cut
		}
	}))
	k.Config.ErrorLog = quiet
	k.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{f.pki.issue("system:node:node-1", "node-1")}}
	k.StartTLS()
	t.Cleanup(k.Close)
	f.bench.net.lead("node-1:10250", k.Listener)
	return f
}

// forward returns a client that forwards a port, and that sends nothing.
func (f *forwardBench) forward(t *testing.T) *websocket.Conn {
	t.Helper()
	return f.websocket(t, "portforward", "SPDY/3.1+portforward.k8s.io")
}

// websocket returns a client of a pod's subresource.
func (b *bench) websocket(t *testing.T, sub, protocol string) *websocket.Conn {
	t.Helper()
	conf, err := websocket.NewConfig(strings.Replace(b.url, "https", "wss", 1)+"/api/v1/namespaces/ns/pods/web/"+sub, b.url)
	if err != nil {
		t.Fatal(err)
	}
	conf.Protocol = []string{protocol}
	conf.Header.Set("Authorization", "Bearer secret")
	conf.TlsConfig = &tls.Config{InsecureSkipVerify: true}
	ws, err := conf.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.Close() })
	if err := ws.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return ws
}

// ended fails the test unless the server closes its connection to the kubelet soon.
func (f *forwardBench) ended(t *testing.T) {
	t.Helper()
	select {
	case <-(<-f.conns).closed:
	case <-time.After(20 * time.Second):
		t.Error("the server still forwards")
	}
}

// TestCutPortForward: a client that sends nothing sees the end of a connection that was lost, and
// the server keeps nothing of it.
func TestCutPortForward(t *testing.T) {
	for what, err := range map[string]error{"lost": errLost, "closed": io.EOF, "closed below": errBelow} {
		t.Run(what, func(t *testing.T) {
			f := startForward(t, err, true)
			ws := f.forward(t)
			if _, err := io.ReadFull(ws, make([]byte, len(f.sent))); err != nil {
				t.Fatal(err)
			}
			f.net.cut()
			if n, err := ws.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("read %d bytes, %v", n, err)
			}
			f.ended(t)
		})
	}
}

// TestPortForwardEndsWhole: all that the kubelet sent before it ended arrives before the end.
func TestPortForwardEndsWhole(t *testing.T) {
	f := startForward(t, io.EOF, false)
	got, err := io.ReadAll(f.forward(t))
	if err != nil || !bytes.Equal(got, f.sent) {
		t.Errorf("got %d of %d bytes, a beginning of them: %v, and %v", len(got), len(f.sent), bytes.HasPrefix(f.sent, got), err)
	}
	f.ended(t)
}
