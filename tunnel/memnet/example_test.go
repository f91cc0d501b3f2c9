// Examples: a connection in memory, and a listener without a port.

package memnet_test

import (
	"context"
	"fmt"
	"io"

	"github.com/hawser-project/hawser/tunnel/memnet"
)

// Each end half-closes its own direction, as with TCP.
func ExamplePipe() {
	client, server := memnet.Pipe(memnet.Addr("client"), memnet.Addr("server"))
	_, _ = io.WriteString(client, "question") // fits into the connection's memory
	_ = client.CloseWrite()                   // never fails
	asked, err := io.ReadAll(server)
	fmt.Println(string(asked), err)
	_, _ = io.WriteString(server, "answer") // as above
	_ = server.Close()                      // never fails
	got, err := io.ReadAll(client)
	fmt.Println(string(got), err)
	_ = client.Close() // never fails
	// Output:
	// question <nil>
	// answer <nil>
}

// A server that needs a net.Listener gets connections that were made in the process.
func ExampleHandoff() {
	ln := memnet.NewHandoff(memnet.Addr("api"), 1)
	client, served := memnet.Pipe(memnet.Addr("node-1"), ln.Addr())
	if err := ln.Inject(context.Background(), served); err != nil {
		fmt.Println(err)
		return
	}
	c, err := ln.Accept()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.RemoteAddr(), "reached", c.LocalAddr())
	_, _ = c.Close(), client.Close() // never fail
	_ = ln.Close()                   // never fails
	// Output: node-1 reached api
}
