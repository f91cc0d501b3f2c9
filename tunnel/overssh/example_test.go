// Example: one session.

package overssh_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

// A server on a node's loopback is reached through the node's sshd.
func Example() {
	var keys overssh.HostKeys // such as a *hostkeys.File
	c := overssh.Config{User: "hawser", KeyFile: "/etc/hawser/id_ed25519", HostKeys: keys}
	s, err := overssh.Dial(context.Background(), c, "node-1", "192.0.2.1:22")
	if errors.Is(err, tunnel.Denied) {
		log.Fatal("the node is not the one that it was, or does not let us in")
	}
	if err != nil {
		log.Fatal(err)
	}
	st, err := s.Dial(context.Background(), "tcp", "node-1:8080")
	switch {
	case errors.Is(err, tunnel.Refused):
		log.Print("nobody listens there")
	case err == nil:
		_ = st.Close()
	}
	_ = s.Close() // never fails
}

// What SSH gives its sessions.
func ExampleCapabilities() {
	fmt.Printf("%+v\n", overssh.Capabilities)
	// Output: {Resume:false Migrate:false HalfClose:true Reset:false}
}
