// Example: a Dialer beside a file of host keys.

package overssh_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

// Requests go to a server on a node's loopback, through the node's sshd.
func Example() {
	keys, err := overssh.OpenHostKeys("/var/lib/hawser/ssh_known_hosts")
	if err != nil {
		log.Fatal(err)
	}
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
	var key *overssh.HostKeyError
	switch {
	case errors.As(err, &key):
		log.Printf("compare %s with what the node says, and pin it", key.Shown.Fingerprint())
	case errors.Is(err, tunnel.Refused):
		log.Print("nobody listens there")
	case err == nil:
		_ = resp.Body.Close()
	}
	cancel()
	running.Wait()
}

// A pinned key is a line of known_hosts.
func ExampleHostKeys_Pin() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	keys, err := overssh.OpenHostKeys(filepath.Join(dir, "known_hosts"))
	if err != nil {
		log.Print(err)
		return
	}
	key, err := overssh.ParseHostKey("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2plmRRBQhS4iDmlJjT2MnPrPTWlpeiFDGwAyOJ4HPK root@node-1")
	if err != nil {
		log.Print(err)
		return
	}
	if err := keys.Pin("node-1", key); err != nil {
		log.Print(err)
		return
	}
	b, err := os.ReadFile(filepath.Join(dir, "known_hosts"))
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(strings.TrimSpace(string(b)))
	// Output:
	// node-1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2plmRRBQhS4iDmlJjT2MnPrPTWlpeiFDGwAyOJ4HPK
}
