// Example: two servers of one cluster.

package peers_test

import (
	"context"
	"crypto/tls"
	"log"
	"net"
	"sync"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/server/peers"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// A hub whose listeners serve other servers as well, and that dials through them into nodes
// that have no session with it.
func Example() {
	conf := &tls.Config{MinVersion: tls.VersionTLS13} // with this server's certificate; accepts servers only
	var hub *server.Hub
	p, err := peers.New(peers.Config{
		ID: "hub-1",
		Dial: func(ctx context.Context, to peers.Peer, resumes bool) (tunnel.Session, error) {
			o := tunnel.Options{TLS: conf, MaxStreams: peers.MaxStreams}
			if !resumes {
				o.Link.DetachWindow = -1
			}
			return qmux.Dial(ctx, to.Addr, o)
		},
		Hub: func() *server.Hub { return hub },
	})
	if err != nil {
		log.Fatal(err)
	}
	ln, err := net.Listen("tcp", ":6443")
	if err != nil {
		log.Fatal(err)
	}
	agents, err := qmux.Listen(ln, tunnel.Options{TLS: conf, Link: tunnel.LinkOptions{Resume: p.MayResume}})
	if err != nil {
		log.Fatal(err)
	}
	hub, err = server.New(server.Config{Listeners: []tunnel.Listener{p.Listener(agents)}, Elsewhere: p.Dial})
	if err != nil {
		log.Fatal(err)
	}
	p.Set([]peers.Peer{{ID: "hub-1", Addr: "192.0.2.1:6443"}, {ID: "hub-2", Addr: "192.0.2.2:6443"}})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) }) // outlives the hub
	if err := hub.Run(ctx); err != nil {
		log.Print(err)
	}
	stop()
	running.Wait()
}
