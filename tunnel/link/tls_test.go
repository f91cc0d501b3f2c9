// Links over TLS and TCP, as they are in earnest.

package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// testTLS is for both ends.
func testTLS(t testing.TB) *tls.Config {
	t.Helper()
	c := tunneltest.TLS(t)
	c.ClientAuth, c.ServerName, c.MinVersion = tls.NoClientCert, "server", tls.VersionTLS13
	c.DynamicRecordSizingDisabled = true // as tunnel.ClientTLS and ServerTLS do
	return c
}

// A harbor accepts links over TLS on loopback and can cut what is below.
type harbor struct {
	registry *Registry
	ln       net.Listener
	conf     *tls.Config
	accepted chan *Link
	wg       sync.WaitGroup

	mu  sync.Mutex // guards the following
	raw []net.Conn
}

func newHarbor(t testing.TB) *harbor {
	t.Helper()
	h := &harbor{conf: testTLS(t), accepted: make(chan *Link, 1)}
	var err error
	if h.registry, err = NewRegistry(RegistryConfig{Identity: func(net.Conn) (string, error) { return "a", nil }}); err != nil {
		t.Fatal(err)
	}
	if h.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	h.wg.Go(func() {
		for {
			raw, err := h.ln.Accept()
			if err != nil {
				return
			}
			h.wg.Go(func() { h.accept(raw) })
		}
	})
	return h
}

func (h *harbor) accept(raw net.Conn) {
	c := tls.Server(NewBatch(raw), h.conf)
	if err := c.HandshakeContext(context.Background()); err != nil {
		_ = raw.Close() // cut in its handshake
		return
	}
	l, resumed, err := h.registry.Accept(context.Background(), c)
	if err == nil && !resumed {
		h.accepted <- l
	}
}

func (h *harbor) dial(ctx context.Context) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", h.ln.Addr().String())
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.raw = append(h.raw, raw)
	h.mu.Unlock()
	c := tls.Client(NewBatch(raw), h.conf)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake's error is the news
		return nil, err
	}
	return c, nil
}

// cut resets the latest connection.
func (h *harbor) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.raw[len(h.raw)-1].(*net.TCPConn)
	_ = c.SetLinger(0) // fails if it is closed already
	_ = c.Close()
}

func (h *harbor) pair(t testing.TB) (client, server *Link) {
	t.Helper()
	client, err := Dial(t.Context(), h.dial, Config{})
	if err != nil {
		t.Fatal(err)
	}
	return client, <-h.accepted
}

func (h *harbor) close(links ...*Link) {
	var wg sync.WaitGroup
	for _, l := range links {
		wg.Go(func() { _ = l.Close() }) // never fails
	}
	wg.Wait()
	_ = h.ln.Close() // ends its goroutine
	_ = h.registry.Close()
	h.wg.Wait()
}

func TestConnOverTLS(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		h := newHarbor(t)
		a, b := h.pair(t)
		return a, b, func() { h.close(a, b) }, nil
	})
}

// Connections are reset while both directions are full, and a deadline passes
// now and then.
func TestChaosOverTLS(t *testing.T) {
	h := newHarbor(t)
	a, b := h.pair(t)
	data := randomBytes(6, 24<<20)
	var wg sync.WaitGroup
	for _, l := range []*Link{a, b} {
		wg.Go(func() {
			if n, err := l.Write(data); err != nil {
				t.Errorf("write: %d, %v", n, err)
			}
		})
		wg.Go(func() {
			got, n, next := make([]byte, len(data)), 0, 1<<20
			for n < len(got) {
				m, err := l.Read(got[n:min(len(got), n+100<<10)])
				n += m
				if err != nil && !isTimeout(err) {
					t.Errorf("read: %d, %v", n, err)
					return
				}
				_ = l.SetReadDeadline(time.Now().Add(100 * time.Microsecond)) // fails once closed only
				if l == a && n > next {
					next += 1 << 20
					h.cut()
				}
			}
			if !bytes.Equal(got, data) {
				t.Error("not what was written")
			}
		})
	}
	wg.Wait()
	if s := a.Stats(); s.Resumes < 10 {
		t.Errorf("%+v", s)
	} else {
		t.Logf("%+v", s)
	}
	h.close(a, b)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// Close takes along what was written last, whatever the peer is just sending.
func TestCloseOverTLS(t *testing.T) {
	for range 20 {
		h := newHarbor(t)
		a, b := h.pair(t)
		data := randomBytes(7, 1<<20)
		var wg sync.WaitGroup
		wg.Go(func() {
			buf := make([]byte, 32<<10)
			for { // until the link is closed
				if _, err := b.Write(buf); err != nil {
					return
				}
			}
		})
		wg.Go(func() {
			_, _ = a.Write(data) // the reader notices
			_ = a.Close()
		})
		if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, data) {
			t.Errorf("read %d: %v", len(got), err)
		}
		wg.Wait()
		h.close(a, b)
	}
}
