// Tests of many connections at once from one address, as kube-apiserver makes them.

package connect

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// burst is how many connections the tests make at once.
const burst = 1000

// discard is a Dial whose targets take everything and say nothing.
func discard(context.Context, string, string) (net.Conn, error) {
	near, far := memnet.Pipe(memnet.Addr("near"), memnet.Addr("far"))
	go func() {
		_, _ = io.Copy(io.Discard, far)
		_ = far.Close()
	}()
	return near, nil
}

// bursts makes connections by dial, calls check, and requests a tunnel on each of them. They
// stay open until all have their answers.
func bursts(t *testing.T, dial func() net.Conn, check func()) {
	t.Helper()
	errs := make(chan error, burst)
	start := make(chan struct{})
	var clients sync.WaitGroup
	for range burst {
		c := dial()
		defer c.Close()
		clients.Go(func() {
			<-start
			errs <- tunnelOver(c)
		})
	}
	synctest.Wait()
	check()
	close(start)
	clients.Wait()
	close(errs)
	failed := 0
	for err := range errs {
		if err != nil {
			if failed++; failed == 1 {
				t.Error(err)
			}
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d clients failed", failed, burst)
	}
}

// tunnelOver requests a tunnel on c.
func tunnelOver(c net.Conn) error {
	if _, err := io.WriteString(c, connectRequest); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s", resp.Status)
	}
	return nil
}

// A unixListener is a listener in memory that says it is a unix socket.
type unixListener struct{ net.Listener }

func (unixListener) Addr() net.Addr { return &net.UnixAddr{Name: "front", Net: "unix"} }

// A thousand clients of one address get their tunnels, over TLS and on a unix socket.
func TestBurst(t *testing.T) {
	for name, c := range map[string]struct {
		listen func(net.Listener, *tls.Config) net.Listener
		client func(net.Conn, *tls.Config) net.Conn
		places int // of connections without a request
	}{
		"TLS": {
			ListenTLS,
			func(c net.Conn, conf *tls.Config) net.Conn { return tls.Client(c, conf) },
			burst,
		},
		"unix": {
			func(l net.Listener, _ *tls.Config) net.Listener { return unixListener{l} },
			func(c net.Conn, _ *tls.Config) net.Conn { return c },
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca := tunneltest.NewAuthority(t, "clients")
				theirs, mine := ca.Server(t), ca.Client(t, "kube-apiserver")
				mine.CurvePreferences = []tls.CurveID{tls.X25519}            // the cheapest
				theirs.ClientAuth, mine.Certificates = tls.NoClientCert, nil // likewise
				s, err := New(Config{Dial: discard})
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
				go func() { stopped <- s.Serve(ctx, c.listen(l, theirs)) }()
				bursts(t, func() net.Conn {
					conn, err := network.Dial(t.Context(), "tcp", "front")
					if err != nil {
						t.Fatal(err)
					}
					return c.client(conn, mine)
				}, func() {
					if n := s.idlers.Count(); n != c.places {
						t.Errorf("%d have a place", n)
					}
				})
				cancel()
				if err := <-stopped; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
