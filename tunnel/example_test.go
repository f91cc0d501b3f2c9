// Examples: a dial from one end of a session to the other, and the code of an error.

package tunnel_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// The agent's end dials what the server's end asks for. An error of that dial is returned to
// the server's end.
func ExampleAnswer() {
	hub, agent := tunneltest.Pair(tunnel.Peer{Addr: memnet.Addr("hub")}, tunnel.Peer{Addr: memnet.Addr("node-1")}, tunnel.Options{})
	ctx := context.Background()
	dial := func(_ context.Context, network, addr string) (net.Conn, error) {
		if addr != "node-1:80" {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		ours, theirs := memnet.Pipe(memnet.Addr("node-1"), memnet.Addr(addr))
		_, _ = io.WriteString(theirs, "hello from node-1") // the reader sees a failure
		return ours, theirs.CloseWrite()
	}
	wait := tunnel.StartServing(ctx, agent, func(ctx context.Context, r *tunnel.Request) {
		_, _ = tunnel.Answer(ctx, r, dial) // the opener gets the error
	})
	st, err := tunnel.Connect(ctx, hub, "tcp", "node-1:80")
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := io.ReadAll(st)
	fmt.Println(string(text), err)
	_ = st.Close() // both directions have ended

	_, err = tunnel.Connect(ctx, hub, "tcp", "node-1:81")
	fmt.Println(tunnel.CodeOf(err).Name())
	_ = hub.Close() // never fails
	fmt.Println(wait())
	// Output:
	// hello from node-1 <nil>
	// refused
	// <nil>
}

// A Code is derived from the type of an error, and keeps its meaning across the tunnel.
func ExampleCodeOf() {
	for _, err := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, context.DeadlineExceeded, tunnel.NoNode} {
		code := tunnel.CodeOf(err)
		fmt.Println(code.Name(), code.Away(), code.Temporary())
	}
	// Output:
	// refused false false
	// unreachable false false
	// timeout false true
	// no_node true true
}
