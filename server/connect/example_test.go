// Example: a client that asks for a node without a session.

package connect_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"github.com/hawser-project/hawser/server/connect"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A dial that fails is a status for the client, and Proxy-Status says more to programs.
func Example() {
	s, err := connect.New(connect.Config{
		Dial: func(_ context.Context, _, addr string) (net.Conn, error) { // a Hub's DialContext
			return nil, &tunnel.DialError{Code: tunnel.NoNode, Addr: addr}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ln := memnet.NewHandoff(memnet.Addr("hub"), 1) // in place of ListenTLS or ListenUnix
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()

	client, accepted := memnet.Pipe(memnet.Addr("client"), ln.Addr())
	if err := ln.Inject(ctx, accepted); err != nil {
		log.Fatal(err)
	}
	_, _ = io.WriteString(client, "CONNECT node-1:10250 HTTP/1.1\r\nHost: node-1:10250\r\n\r\n") // the reader sees a failure
	resp, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(resp.Status)
	fmt.Println(resp.Header.Get("Proxy-Status"))
	_ = resp.Body.Close()
	_ = client.Close() // never fails
	cancel()
	fmt.Println(<-served)
	// Output:
	// 503 Service Unavailable: dial node-1:10250: no such node is connected
	// hawser; error=destination_unavailable; details="dial node-1:10250: no such node is connected"
	// <nil>
}
