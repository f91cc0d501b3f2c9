package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

// An agent of the protocol hawser/1 gets, in its protocol, the version to install. That is
// logged once. Connections of other protocols are not taken by this listener.
func TestOlderAgentsAreTold(t *testing.T) {
	ca := newAuthority(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer // read only once the listener has stopped
	l, err := NewOlder(ln, "v9.9.9", tunnel.Options{
		TLS: auth.ServerTLS(certificate(ca.server()), ca.authorities), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Serve(ctx, func(context.Context, tunnel.Session) { t.Error("a session") }); err != nil {
			t.Error(err)
		}
	})
	dial := func(alpn ...string) (*tls.Conn, error) {
		conf := auth.ClientTLS(showing(ca.client("system:node:n", "system:nodes")), ca.Pool(), "apiserver")
		conf.NextProtos = alpn
		c, err := (&tls.Dialer{Config: conf}).DialContext(t.Context(), "tcp", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		return c.(*tls.Conn), nil
	}
	for range 2 {
		c, err := dial("hawser/1+link", "hawser/1")
		if err != nil {
			t.Fatal(err)
		}
		// version 1, kind open, 12 bytes of terms: the first bytes of such an agent
		if _, err = c.Write([]byte{1, 1, 0, 12, 0, 64, 0, 0, 0, 0, 54, 176, 0, 0, 234, 96}); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil || len(got) < 5 || got[0] != 1 || got[1] != 5 || int(got[3]) != len(got)-4 || got[4] != byte(tunnel.Denied) ||
			!strings.Contains(string(got), "install the hawser-agent that belongs to it, v9.9.9") {
			t.Errorf("it is told %q, %v", got, err)
		}
		_ = c.Close()
	}
	if c, err := dial("hawser/3"); err == nil {
		_ = c.Close()
		t.Error("a later protocol is taken for an older one")
	}
	cancel()
	wg.Wait()
	if got := log.String(); strings.Count(got, "agent is too old") != 1 || !strings.Contains(got, "version=v9.9.9") || !strings.Contains(got, "system:node:n") {
		t.Errorf("log: %s", got)
	}
}
