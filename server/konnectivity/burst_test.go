// Tests of many connections at once from one address, as kube-apiserver makes them.

package konnectivity

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/hawser-project/hawser/server/connect"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// discard is a Dial whose targets take everything and say nothing.
func discard(context.Context, string, string) (net.Conn, error) {
	near, far := memnet.Pipe(memnet.Addr("near"), memnet.Addr("far"))
	go func() {
		_, _ = io.Copy(io.Discard, far)
		_ = far.Close()
	}()
	return near, nil
}

// bursts makes a thousand connections by dial at once. They stay open until all have succeeded
// or failed.
func bursts(t *testing.T, dial func() (net.Conn, error)) {
	t.Helper()
	const n = 1000
	var (
		mu     sync.Mutex // guards the following
		opened []net.Conn
		last   error
		failed int
	)
	start := make(chan struct{})
	var clients sync.WaitGroup
	for range n {
		clients.Go(func() {
			<-start
			c, err := dial()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				last = err
				failed++
				return
			}
			opened = append(opened, c)
		})
	}
	close(start)
	clients.Wait()
	if failed > 0 {
		t.Errorf("%d of %d clients failed, the last one with %v", failed, n, last)
	}
	for _, c := range opened {
		_ = c.Close()
	}
}

// A thousand clients of one address get their connections over TLS.
func TestBurstOverTLS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := tunneltest.NewAuthority(t, "clients")
		theirs, mine := ca.Server(t), ca.Client(t, "kube-apiserver")
		theirs.NextProtos, mine.NextProtos = []string{"h2"}, nil
		mine.CurvePreferences = []tls.CurveID{tls.X25519}            // the cheapest
		theirs.ClientAuth, mine.Certificates = tls.NoClientCert, nil // likewise
		s, err := New(Config{Dial: discard, Authorize: func(*tls.ConnectionState) error { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		var network tunneltest.Network
		l, err := network.Listen(t.Context(), "tcp", "front")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		stopped := make(chan error, 1)
		go func() { stopped <- s.Serve(ctx, connect.ListenTLS(l, theirs)) }()
		options := []grpc.DialOption{
			grpc.WithTransportCredentials(credentials.NewTLS(mine)),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return network.Dial(ctx, "tcp", "front") }),
		}
		bursts(t, func() (net.Conn, error) {
			return singleUse(t.Context(), "node-1:10250", "passthrough:///front", options...)
		})
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

// So do a thousand clients of a unix socket, whose number is not bounded.
func TestBurstOnUnixSocket(t *testing.T) {
	socket := onSocket(t, Config{Dial: discard})
	bursts(t, func() (net.Conn, error) { return dialSocket(t.Context(), socket, "node-1:10250") })
}
