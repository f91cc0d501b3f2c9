package peers

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// TestSilentServer: a server that sends nothing for four seconds is not tried any more,
// although no connection has failed, and its nodes count as silent since then.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x tunneltest.Exchange
		hub, err := server.New(server.Config{Listeners: []tunnel.Listener{x.Listen("here")}})
		if err != nil {
			t.Fatal(err)
		}
		var far sync.WaitGroup
		p, err := New(Config{ID: "a", Hub: func() *server.Hub { return hub }, Dial: func(context.Context, Peer, bool) (tunnel.Session, error) {
			near, other := tunneltest.Pair(tunnel.Peer{Addr: memnet.Addr("a")}, tunnel.Peer{Addr: memnet.Addr("b")}, tunnel.Options{})
			far.Go(func() {
				_ = tunneltest.ServeRequests(context.WithoutCancel(t.Context()), other, func(_ context.Context, r *tunnel.Request) {
					st, err := r.Accept()
					if err != nil {
						return
					}
					_, _ = io.WriteString(st, `{"nodes":[{"Node":"n","State":"Attached","Number":1}],"complete":true}`+"\n") // and then nothing
				})
			})
			return near, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { _ = p.Run(ctx) })
		p.Set([]Peer{{ID: "a", Addr: "itself"}, {ID: "b", Addr: "b:1"}})
		time.Sleep(silence - time.Millisecond)
		if n := len(p.owners("n")); n != 1 {
			t.Errorf("%d servers have the node, want 1", n)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n := len(p.owners("n")); n != 0 {
			t.Errorf("%d servers have the node, want 0", n)
		}
		if o, ok := p.Observe("n"); !ok || o.State != server.Detached || o.Cause != server.Silent || time.Since(o.Heard) > 10*time.Millisecond {
			t.Errorf("%+v", o)
		}
		cancel()
		group.Wait()
		far.Wait()
	})
}
