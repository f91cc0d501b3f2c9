package tunneltest_test

import (
	"context"
	"fmt"
	"io"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// One end of a session asks for a target, and the other end says whether it has it.
func ExamplePair() {
	near, far := tunneltest.Pair(tunnel.Peer{Addr: memnet.Addr("server")}, tunnel.Peer{Addr: memnet.Addr("agent")}, tunnel.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- tunneltest.ServeRequests(ctx, far, func(_ context.Context, r *tunnel.Request) {
			if r.Addr != "node-1:7" {
				_ = r.Reject(tunnel.Refused, "nobody listens") // the dialing end says so
				return
			}
			if st, err := r.Accept(); err == nil {
				_, _ = io.Copy(st, st) // the dialing end compares
				_ = st.Close()
			}
		})
	}()
	st, err := tunnel.Connect(ctx, near, "tcp", "node-1:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = io.WriteString(st, "there and back")
	_ = st.CloseWrite()
	text, err := io.ReadAll(st)
	fmt.Println(string(text), err)
	_, err = tunnel.Connect(ctx, near, "tcp", "node-1:8")
	fmt.Println(tunnel.CodeOf(err))
	_ = near.Close()
	<-served
	// Output:
	// there and back <nil>
	// connection refused
}
