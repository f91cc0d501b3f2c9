package overquic

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// What callers ask a stream for.
var (
	_ tunnel.Aborter      = (*stream)(nil)
	_ tunnel.BufferReader = (*stream)(nil)
	_ tunnel.Resetter     = (*stream)(nil)
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits. It is no measure: what takes this long hangs.
const patience = 30 * time.Second

func TestConformance(t *testing.T) { tunneltest.Run(t, Transport().Can, overLoopback) }

// listen listens on loopback until the test is over.
func listen(t testing.TB, o tunnel.Options) (tunnel.Listener, <-chan tunnel.Session) {
	t.Helper()
	o.TLS = tunneltest.TLS(t)
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenPacket(pc, o)
	if err != nil {
		t.Fatal(err)
	}
	return l, tunneltest.Serve(t, l)
}

// overLoopback makes a session over UDP.
func overLoopback(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
	t.Helper()
	l, accepted := listen(t, o)
	o.TLS = tunneltest.TLS(t)
	dialer, err := Transport().Dial(t.Context(), l.Addr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	return dialer, <-accepted
}

func pair(t testing.TB, o tunnel.Options) (dialer, accepter *session) {
	t.Helper()
	a, b := overLoopback(t, o)
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a.(*session), b.(*session)
}

// open opens a stream, says a byte on it so that the peer sees it, and accepts it.
func open(t testing.TB, from, to tunnel.Session) (near, far tunnel.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	near, err := from.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = near.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if far, err = to.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err = far.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// await waits until f is true.
func await(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}
