package overh2

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// Where a load balancer leads the second connection to another server than the first one, both
// ends learn why no session comes about, and the server's log has the identity.
func TestSecondReachesAnotherServer(t *testing.T) {
	var log tunneltest.Log
	one, _ := tunneltest.ListenTCP(t, Transport(), tunnel.Options{})
	two, _ := tunneltest.ListenTCP(t, Transport(), tunnel.Options{Log: log.Logger()})
	var dials atomic.Int32
	o := tunnel.Options{TLS: tunneltest.TLS(t)}
	o.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		addr := one
		if dials.Add(1)%2 == 0 {
			addr = two
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	s, err := Dial(t.Context(), one, o)
	if err == nil {
		<-s.Context().Done()
		err = context.Cause(s.Context())
	}
	const want = "both connections must reach the same server"
	var bye *tunnel.Goodbye
	if !errors.As(err, &bye) || bye.Code != tunnel.Lost || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	tunneltest.Eventually(t, "the server has logged it", func() bool { return log.String() != "" })
	if text := log.String(); !strings.Contains(text, want) || !strings.Contains(text, `\"\" []`) { // the subject is empty
		t.Errorf("log: %s", text)
	}
}

// A refusedConn is one on which the server's refusal arrives before the ID is asked for.
type refusedConn struct {
	net.Conn
	why error
}

func (r refusedConn) Read([]byte) (int, error) { return 0, r.why }

// The library does not say why a connection ended before the first request.
func TestAskingSaysWhyTheConnectionEnded(t *testing.T) {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	defer func() { _ = far.Close() }()
	why := &net.OpError{Op: "remote error", Err: tls.AlertError(42)}
	c := newConn(refusedConn{near, why}, tunnel.Options{})
	cc, err := client(c, tunnel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	<-c.Closed()
	if _, err = askID(t.Context(), c, cc); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}
