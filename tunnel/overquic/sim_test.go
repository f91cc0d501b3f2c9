// What takes time, in time that does not pass.

package overquic

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A wire is a network on which a round trip takes 50 ms, until it is cut.
type wire struct {
	simnet.PerfectRouter
	cut atomic.Bool
}

func (w *wire) SendPacket(p simnet.Packet) error {
	if w.cut.Load() {
		return nil
	}
	return w.PerfectRouter.SendPacket(p)
}

// simulated runs f with a session on a wire.
func simulated(t *testing.T, o tunnel.Options, f func(t *testing.T, a, b *session, w *wire)) {
	o.TLS = tunneltest.TLS(t) // made at the time there is
	synctest.Test(t, func(t *testing.T) {
		w := new(wire)
		network := &simnet.Simnet{Router: w}
		endpoint := func(last byte) (*net.UDPAddr, net.PacketConn) {
			addr := &net.UDPAddr{IP: net.IPv4(10, 0, 0, last), Port: 1000}
			return addr, network.NewEndpoint(addr, simnet.NodeBiDiLinkSettings{Latency: 25 * time.Millisecond})
		}
		to, there := endpoint(1)
		_, here := endpoint(2)
		_, spare := endpoint(3)
		if err := network.Start(); err != nil {
			t.Fatal(err)
		}
		l, err := ListenPacket(there, o)
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan *session)
		var serving sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		serving.Go(func() {
			err := l.Serve(ctx, func(_ context.Context, s tunnel.Session) {
				accepted <- s.(*session)
				<-s.Context().Done()
			})
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		})
		free := []net.PacketConn{here, spare}
		a, err := dial(ctx, "server:1", to, o, func(context.Context, string, string) (net.PacketConn, error) {
			c := free[0]
			free = free[1:]
			return c, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		b := <-accepted
		f(t, a, b, w)
		_, _ = a.Close(), b.Close()
		cancel()
		serving.Wait()
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A session on which nothing happens lasts for as long as its path, and both ends find
// within 20 s that it is dead.
func TestDeadWithin20Seconds(t *testing.T) {
	simulated(t, tunnel.Options{}, func(t *testing.T, a, b *session, w *wire) {
		time.Sleep(24 * time.Hour)
		for range 20 { // whatever was last asked, and when
			says(t, a, b)
			time.Sleep(1234 * time.Millisecond)
		}
		w.cut.Store(true)
		start := time.Now()
		for _, s := range []*session{a, b} {
			<-s.Context().Done()
			if err := context.Cause(s.Context()); tunnel.CodeOf(err) != tunnel.Dead {
				t.Errorf("cause: %v", err)
			}
		}
		if d := time.Since(start); d < 10*time.Second || d > 20*time.Second {
			t.Errorf("it was found after %v", d)
		}
	})
}

// While the reader keeps up the window grows as far as the budget allows.
func TestWindowGrows(t *testing.T) {
	intake := tunnel.NewIntake(16 << 20)
	simulated(t, tunnel.Options{Intake: intake}, func(t *testing.T, a, b *session, _ *wire) {
		before := intake.Granted()
		var wg sync.WaitGroup
		for range 4 {
			near, far := open(t, a, b)
			wg.Go(func() {
				if _, err := near.Write(make([]byte, 8<<20)); err != nil {
					t.Errorf("write: %v", err)
				}
				_ = near.Close()
			})
			wg.Go(func() {
				if n, err := io.Copy(io.Discard, far); n != 8<<20 || err != nil {
					t.Errorf("read %d bytes, %v", n, err)
				}
				_ = far.Close()
			})
		}
		wg.Wait()
		if got := intake.Granted(); got <= before || got > intake.Limit()/2 {
			t.Errorf("granted %d bytes, and at first %d", got, before)
		}
	})
	if got := intake.Granted(); got != 0 {
		t.Errorf("%d bytes are granted to nobody", got)
	}
}
