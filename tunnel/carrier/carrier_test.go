// Who is let in, and who hears at once that he is not.

package carrier

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// lines is a log that can be looked at.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func TestRefusedAtOnce(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	good := ca.server(t)
	open := good.Clone()
	open.ClientAuth = tls.NoClientCert
	expired := ca.client(t, "a")
	expired.Certificates = []tls.Certificate{ca.issue(t, "system:node:a", time.Now().Add(-time.Minute))}
	for _, tc := range []struct {
		name   string
		server *tls.Config
		client *tls.Config
		want   string
	}{
		{"no configuration", good, nil, "no TLS configuration"},
		{"server of another authority", good, other.client(t, "a"), "unknown authority"},
		{"client of another authority", good, func() *tls.Config {
			c := other.client(t, "a")
			c.RootCAs = ca.pool()
			return c
		}(), "certificate"},
		{"expired client", good, expired, "certificate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := serve(t, tunnel.Options{TLS: tc.server})
			if err := try(t, srv.addr, tc.client); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v; want %q", err, tc.want)
			}
		})
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if _, err := NewAcceptor(ln, protocols, nil, tunnel.Options{TLS: open}); err == nil {
		t.Error("listened without asking for client certificates")
	}
	var unknown x509.UnknownAuthorityError
	srv := serve(t, tunnel.Options{TLS: good})
	if err := try(t, srv.addr, other.client(t, "a")); !errors.As(err, &unknown) {
		t.Errorf("untyped: %v", err)
	}
}

// A peer of another protocol is not taken for one of this.
func TestWrongALPN(t *testing.T) {
	ca := newAuthority(t, "ca")
	srv := serve(t, tunnel.Options{TLS: ca.server(t)})
	for _, names := range [][]string{nil, {"http/1.1"}, {"hawser/1"}} {
		conf := ca.client(t, "a")
		conf.NextProtos = names
		c, err := (&tls.Dialer{Config: conf}).DialContext(within(t), "tcp", srv.addr)
		if err != nil {
			continue // told in the handshake
		}
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err = c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%q: %v", names, err)
		}
		_ = c.Close()
	}
	select {
	case <-srv.conns:
		t.Error("it has a connection")
	default:
	}
}
