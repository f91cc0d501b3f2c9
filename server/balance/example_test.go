// Example: one front with two targets.

package balance_test

import (
	"context"
	"log"
	"net"
	"net/netip"
	"sync"

	"github.com/hawser-project/hawser/server/balance"
)

// Clients of port 8080 reach a port of two nodes through a hub.
func Example() {
	var hub struct{ net.Dialer } // in place of a *server.Hub
	b, err := balance.New(balance.Config{Dial: hub.DialContext})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = b.Run(ctx) }) // returns nil
	err = b.Set(ctx, "default/web", []balance.Front{{
		Addr:    netip.MustParseAddrPort("127.0.0.1:8080"),
		Sources: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Targets: func() []string { return []string{"node-1:30080", "node-2:30080"} }, // those that are ready
	}})
	if err != nil {
		log.Print(err) // names the fronts that cannot listen; the others do
	}
	cancel()
	running.Wait()
}
