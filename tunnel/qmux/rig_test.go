// What the tests of this package have in common: sessions over memory and over TLS.

package qmux

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// What callers ask a session and a stream for.
var (
	_ tunnel.Session  = (*Session)(nil)
	_ tunnel.Aborter  = (*stream)(nil)
	_ tunnel.Carrier  = (*stream)(nil)
	_ tunnel.Resetter = (*stream)(nil)
)

// acceptOwn is accept for tests that look into the session.
func (r *registry) acceptOwn(ctx context.Context, t secured) (*Session, error) {
	s, err := r.accept(ctx, t)
	own, _ := s.(*Session)
	return own, err
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait. It is no measure: what takes this long hangs.
const patience = 30 * time.Second

func waiting(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// bare stands for a TLS connection: what is below it is the connection itself.
type bare struct{ net.Conn }

func (b bare) NetConn() net.Conn { return b.Conn }

// CloseWrite ends our direction after what was collected.
func (b bare) CloseWrite() error {
	if batch, ok := b.Conn.(*batch); ok {
		if _, err := batch.flush(true); err != nil {
			return err
		}
		return tunnel.CloseWrite(batch.Conn)
	}
	return tunnel.CloseWrite(b.Conn)
}

// overMemory makes a session without TLS.
func overMemory(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
	t.Helper()
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	return joined(t, a, b, o)
}

// joined makes a session on the two ends of a connection.
func joined(t testing.TB, a, b net.Conn, o tunnel.Options) (dialer, accepter tunnel.Session) {
	t.Helper()
	return joinedOf(t, a, b, o, o)
}

// joinedOf is joined with options for each end.
func joinedOf(t testing.TB, a, b net.Conn, dialing, accepting tunnel.Options) (dialer, accepter tunnel.Session) {
	t.Helper()
	r := newRegistry(accepting, func(tunnel.Peer) (string, error) { return "node", nil })
	accepted := make(chan *Session, 1)
	go func() {
		s, err := r.acceptOwn(t.Context(), bare{newBatch(b)})
		if err != nil {
			t.Errorf("accept: %v", err)
		}
		accepted <- s
	}()
	s, err := dialOn(t.Context(), bare{newBatch(a)}, func(context.Context) (secured, error) { return nil, tunnel.Unreachable }, dialing)
	if err != nil {
		t.Fatal(err)
	}
	return s, <-accepted
}

// plain makes sessions without the extension.
func plain(mk tunneltest.Make) tunneltest.Make {
	return func(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
		t.Helper()
		o.Link.DetachWindow = -1
		return mk(t, o)
	}
}

func TestHeardToTheEnd(t *testing.T) {
	tunneltest.RunHeardToTheEnd(t, tunneltest.OverTCP(Transport()))
}

func TestConformance(t *testing.T) {
	t.Run("TLS", func(t *testing.T) { tunneltest.Run(t, Transport().Can, tunneltest.OverTCP(Transport())) })
	t.Run("TLSInTLS", func(t *testing.T) { tunneltest.Run(t, Transport().Can, tunneltest.OverTLSRelay(Transport())) })
	t.Run("Memory", func(t *testing.T) { tunneltest.Run(t, Transport().Can, overMemory) })
	t.Run("Plain", func(t *testing.T) { tunneltest.Run(t, Transport().Can, plain(tunneltest.OverTCP(Transport()))) })
}

func BenchmarkSession(b *testing.B) { tunneltest.Benchmark(b, tunneltest.OverTCP(Transport())) }

func TestResumes(t *testing.T) { tunneltest.RunResume(t, tunneltest.OverRelay(Transport())) }

func TestRefusals(t *testing.T) {
	tunneltest.RunRefusals(t, tunneltest.OverTCP(Transport()))
	tunneltest.RunResumeRefusals(t, tunneltest.OverRelay(Transport()))
}
