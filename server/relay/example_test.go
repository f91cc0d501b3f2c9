// Example: a Relay in front of an API server.

package relay_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/hawser-project/hawser/server/relay"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// Connections of the listener and of agents reach the API server. Here it is in memory.
func Example() {
	r, err := relay.New(relay.Config{
		Addr: "api.example:6443",
		Dial: func(_ context.Context, _, addr string) (net.Conn, error) { // nil dials TCP
			near, api := memnet.Pipe(memnet.Addr("relay"), memnet.Addr(addr))
			_, _ = io.WriteString(api, "hello from "+addr) // the reader sees a failure
			return near, api.CloseWrite()
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ln := memnet.NewHandoff(memnet.Addr("hub:6443"), 1) // in place of a listener on the network
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx, ln) }()

	client, accepted := memnet.Pipe(memnet.Addr("client"), ln.Addr())
	if err := ln.Inject(ctx, accepted); err != nil {
		log.Fatal(err)
	}
	text, err := io.ReadAll(client)
	fmt.Println(string(text), err)
	_ = client.Close() // never fails
	cancel()
	_ = ln.Close() // never fails
	fmt.Println(<-ran)
	// Output:
	// hello from api.example:6443 <nil>
	// <nil>
}
