// Example: a Fleet of one node.

package sshnodes_test

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"

	"github.com/hawser-project/hawser/server/sshnodes"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

// Requests go to a server on a node's loopback, through the node's sshd.
func Example() {
	var keys overssh.HostKeys // such as a *hostkeys.File
	f, err := sshnodes.New(sshnodes.Config{
		SSH: overssh.Config{User: "hawser", KeyFile: "/etc/hawser/id_ed25519", HostKeys: keys},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) }) // returns nil
	f.Set("node-1", "192.0.2.1:22", "node-1:8080")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return f.Dial(ctx, "node-1", tunnel.Dial{Network: network, Addr: addr})
	}}}
	resp, err := client.Get("http://node-1:8080/healthz")
	switch {
	case errors.Is(err, tunnel.Denied):
		log.Print("the node is not the one that it was, or does not let us in")
	case errors.Is(err, tunnel.Refused):
		log.Print("nobody listens there")
	case err == nil:
		_ = resp.Body.Close()
	}
	cancel()
	running.Wait()
}
