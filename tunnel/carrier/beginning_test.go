package carrier

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// TestBeginningOfIdentity: connections of one identity that are to become sessions are bounded. A
// further one gets in when another has left, and another identity always does.
func TestBeginningOfIdentity(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(ln, "test", []string{spoken}, Bare, tunnel.Options{TLS: ca.Server(t)}, func(ctx context.Context, c *tls.Conn) (tunnel.Session, error) {
		stop := context.AfterFunc(ctx, func() { _ = c.NetConn().Close() })
		defer stop()
		_, _ = c.Write([]byte{letIn})   // who is not there does not read it
		_, _ = io.Copy(io.Discard, c)   // until the peer leaves
		return nil, c.NetConn().Close() // nobody uses it any more
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := l.Serve(ctx, nil); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
	addr, one := ln.Addr().String(), tunnel.Options{TLS: ca.Client(t, "one")}
	const attempts = 400
	var in []*tls.Conn
	for range attempts {
		if c, err := reach(t, addr, one); err == nil {
			in = append(in, c)
		}
	}
	if len(in) != maxBeginning {
		t.Errorf("%d of %d connections of one identity are open", len(in), attempts)
	}
	dial(t, addr, tunnel.Options{TLS: ca.Client(t, "another")})
	_ = in[0].Close()
	tunneltest.Eventually(t, "a place for a further connection", func() bool {
		_, err := reach(t, addr, one)
		return err == nil
	})
	tunneltest.Eventually(t, "each connection sent away is counted", func() bool { return l.Handshakes().NoSession >= attempts-maxBeginning })
	if got := l.Handshakes(); got.Refused != 0 {
		t.Errorf("%+v", got)
	}
}
