// A partition below the connections of the transports.

package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// The far end of a transport's connection that is given up during a partition hears of it when the
// partition heals, and not before.
func TestPartitionTransport(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conf := tunneltest.TLS(t)
	conf.NextProtos = []string{"test"}
	served := make(chan *tls.Conn, 1)
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		far := tls.Server(c, conf)
		if err := far.HandshakeContext(t.Context()); err == nil {
			served <- far
		}
	}()
	var g partition
	var raw net.Conn
	dial := g.wrapDial(func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		raw, err = new(net.Dialer).DialContext(ctx, network, addr)
		return raw, err
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var near *tls.Conn
	if _, err := carrier.Dial(ctx, l.Addr().String(), "test", carrier.Bare, tunnel.Options{TLS: tunneltest.TLS(t), Dial: dial},
		func(_ context.Context, _ *carrier.Dialer, c *tls.Conn) (tunnel.Session, error) {
			near = c
			return nil, nil
		}); err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	far, ok := <-served
	if !ok {
		t.Fatal("no handshake")
	}
	defer far.NetConn().Close()
	g.stop()
	carrier.DropUnsent(near)
	_ = near.NetConn().Close()
	// The partition keeps the socket and has its users return.
	if _, err := raw.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the socket during the partition: %v", err)
	}
	g.resume()
	if _, err := raw.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the socket after the partition: %v", err)
	}
	_ = far.SetReadDeadline(time.Now().Add(patience))
	if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the far end after the partition: %v", err)
	}
}
