// Example: a Dialer beside a file of host keys.

package overssh_test

import (
	"context"
	"errors"
	"log"
	"net/http"
	"sync"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

// Requests go to a server on a node's loopback, through the node's sshd.
func Example() {
	var keys overssh.HostKeys // such as a *hostkeys.File
	d, err := overssh.New(overssh.Config{
		Node: "node-1", Addr: "192.0.2.1", User: "hawser", KeyFile: "/etc/hawser/id_ed25519", HostKeys: keys,
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = d.Run(ctx) }) // returns nil
	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
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
