package bench

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/server/balance"
	"github.com/hawser-project/hawser/server/connect"
	"github.com/hawser-project/hawser/tunnel"
)

// balancerShare is how much of CONNECT's throughput a load balancer has at least.
const balancerShare = 0.9

// BenchmarkBalancer measures what moves through a load balancer and through a CONNECT front
// end of one hub, to one node, by turns. The client of either is on plain TCP. A round is a quarter of a second of each. It fails
// below balancerShare, by the median of the rounds.
func BenchmarkBalancer(b *testing.B) {
	by, byConnect := balanced(b)
	for _, bulk := range []struct {
		name    string
		mode    byte
		streams int
	}{{"down", modeSource, 1}, {"up", modeDiscard, 1}, {"down8", modeSource, 8}, {"up8", modeDiscard, 8}} {
		b.Run(bulk.name, func(b *testing.B) {
			var balancer, connect, shares []float64
			for b.Loop() {
				is, was := moves(b, by, bulk.mode, bulk.streams), moves(b, byConnect, bulk.mode, bulk.streams)
				balancer, connect, shares = append(balancer, is), append(connect, was), append(shares, is/was)
			}
			b.ReportMetric(median(balancer), "MB/s")
			b.ReportMetric(median(connect), "MB/s-connect")
			b.ReportMetric(median(shares), "of-connect")
			if share := median(shares); share < balancerShare && len(shares) >= 5 {
				b.Errorf("%.2f of CONNECT's throughput, want %.2f", share, balancerShare)
			}
		})
	}
}

// balanced are two ways to one target.
func balanced(b *testing.B) (by, byConnect *system) {
	b.Helper()
	dir := b.TempDir()
	if err := makeKeys(dir); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	group, ctx := errgroup.WithContext(ctx)
	far, err := startTarget(ctx)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		far.close()
		cancel()
		if err := group.Wait(); err != nil {
			b.Error(err)
		}
	})
	conf, err := servingTLS(dir)
	if err != nil {
		b.Fatal(err)
	}
	p := new(part)
	l, err := p.listen(ctx, QMux, tunnel.Options{TLS: conf})
	if err != nil {
		b.Fatal(err)
	}
	hub, err := server.New(server.Config{Listeners: []tunnel.Listener{l}, DrainTimeout: -1})
	if err != nil {
		b.Fatal(err)
	}
	proxy, err := connect.New(connect.Config{Dial: hub.DialContext})
	if err != nil {
		b.Fatal(err)
	}
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0") // as the balancer's: a unix socket is another thing
	if err != nil {
		b.Fatal(err)
	}
	p.run = append(p.run, func(ctx context.Context) error { return proxy.Serve(ctx, socket) })
	balancer, err := balance.New(balance.Config{Dial: hub.DialContext, Drain: time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	agents, err := newNode(ctx, order{Dir: dir, Transport: QMux, To: l.Addr().String(), First: 1, Count: 1})
	if err != nil {
		b.Fatal(err)
	}
	for _, run := range slices.Concat(p.run, agents.run, []func(context.Context) error{hub.Run, balancer.Run}) {
		group.Go(func() error { return run(ctx) })
	}
	if err := hub.Wait(ctx, 1); err != nil {
		b.Fatal(err)
	}
	at := front(b, balancer, far)
	return &system{name: "balancer", target: far, dial: dialTCP(at)}, &system{name: "connect", target: far, dial: dialConnect("tcp", socket.Addr().String(), far.addr())}
}

// front has balancer listen for a target behind the first node, and returns where.
func front(b *testing.B, balancer *balance.Balancer, far *target) string {
	b.Helper()
	free, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	at := free.Addr().String()
	_ = free.Close()
	_, port, err := net.SplitHostPort(far.addr())
	if err != nil {
		b.Fatal(err)
	}
	to := net.JoinHostPort("127.0.0.1%"+nodeName(1), port)
	if err := balancer.Set(b.Context(), "ns/web", []balance.Front{{Addr: netip.MustParseAddrPort(at), Targets: func() []string { return []string{to} }}}); err != nil {
		b.Fatal(err)
	}
	return at
}

// moves is how many MB a second a system moves.
func moves(b *testing.B, s *system, mode byte, streams int) float64 {
	b.Helper()
	const d = 250 * time.Millisecond
	l := newLoad(s, mode)
	if err := l.start(b.Context(), streams); err != nil {
		b.Fatal(err)
	}
	if err := pause(b.Context(), d/4); err != nil {
		b.Fatal(err)
	}
	before, began := l.moved(), time.Now()
	if err := pause(b.Context(), d); err != nil {
		b.Fatal(err)
	}
	rate := perSecond(l.moved()-before, time.Since(began))
	if err := l.stop(); err != nil {
		b.Fatal(err)
	}
	if err := s.target.settle(b.Context()); err != nil {
		b.Fatal(err)
	}
	return rate
}
