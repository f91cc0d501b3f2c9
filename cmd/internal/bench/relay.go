// The relay: two hops, a TLS connection for each stream, nothing shared.

package bench

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A relay accepts, connects and copies.
type relay struct {
	listener net.Listener
	to       string
	accept   func(net.Conn) tunnel.Stream // what is spoken with who connects
	connect  func(net.Conn) tunnel.Stream // and at the other side
}

// plain is a TCP connection as it is.
func plain(c net.Conn) tunnel.Stream { return c.(*net.TCPConn) }

// newRelayControl is the first hop: plain TCP in, TLS out.
func newRelayControl(ctx context.Context, o order) (*part, error) {
	i, err := openIssuer(o.Dir)
	if err != nil {
		return nil, err
	}
	conf, err := i.node("relay")
	if err != nil {
		return nil, err
	}
	c, err := conf(ctx)
	if err != nil {
		return nil, err
	}
	c.ServerName = "127.0.0.1"
	return newRelay(ctx, o.To, plain, func(raw net.Conn) tunnel.Stream { return tls.Client(raw, c) })
}

// newRelayNode is the second hop: TLS in, plain TCP out.
func newRelayNode(ctx context.Context, o order) (*part, error) {
	i, err := openIssuer(o.Dir)
	if err != nil {
		return nil, err
	}
	serving, err := servingTLS(o.Dir)
	if err != nil {
		return nil, err
	}
	// A certificate is read once: the yardstick looks at no files.
	cert, err := serving.GetCertificate(new(tls.ClientHelloInfo))
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	c := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// By itself: the authority that goes with it is for nodes that join.
		Certificates: []tls.Certificate{{Certificate: cert.Certificate[:1], PrivateKey: cert.PrivateKey}},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: i.clients,
	}
	return newRelay(ctx, o.To, func(raw net.Conn) tunnel.Stream { return tls.Server(raw, c) }, plain)
}

func newRelay(ctx context.Context, to string, accept, connect func(net.Conn) tunnel.Stream) (*part, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen as relay: %w", err)
	}
	r := &relay{listener: l, to: to, accept: accept, connect: connect}
	return &part{answer: answer{Addr: l.Addr().String()}, run: []func(context.Context) error{r.run}}, nil
}

func (r *relay) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = r.listener.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := r.listener.Accept()
		switch {
		case err == nil:
			wg.Go(func() { r.pass(ctx, c) })
		case ctx.Err() != nil:
			return nil
		default:
			return fmt.Errorf("accept: %w", err)
		}
	}
}

// pass is the life of one connection. The client notices if it fails.
func (r *relay) pass(ctx context.Context, c net.Conn) {
	defer c.Close()
	up, err := new(net.Dialer).DialContext(ctx, "tcp", r.to)
	if err != nil {
		return
	}
	defer up.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = c.SetDeadline(time.Unix(1, 0)) // both belong to the copying below
		_ = up.SetDeadline(time.Unix(1, 0))
	})
	defer stop()
	a, b := r.accept(c), r.connect(up)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(a, b)
		_ = a.CloseWrite()
	})
	_, _ = io.Copy(b, a)
	_ = b.CloseWrite()
	wg.Wait()
}
