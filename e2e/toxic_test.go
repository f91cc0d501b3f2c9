// What happens to the TCP connection of a session, as opposed to its packets:
// load balancers, proxies and dying machines, with real kubectl on top.

package e2e

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab"
)

// Every byte comes once, whatever a connection breaks on.
func TestToxics(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "0")
	for i, transport := range resuming {
		t.Run(transport, func(t *testing.T) {
			relay := c.relayedNode(t, nodeAt(i), "--transport="+transport)
			loads := startLoads(t, c.on(nodeAt(i)))
			steps := []struct {
				name string
				do   func() error
			}{
				{"slivers of three bytes", func() error { return relay.Slice(lab.Out, 3, 0) }},
				{"slivers the other way", func() error { return relay.Slice(lab.In, 3, 0) }},
				{"jitter", func() error { return relay.Latency(lab.Both, 20*time.Millisecond, 19*time.Millisecond) }},
				{"64 KiB a second", func() error { return relay.Throttle(lab.Both, 64) }},
				{"late closes", func() error { return relay.SlowClose(lab.Both, time.Second) }},
				{"at most 100 KB a connection out", func() error { return relay.Limit(lab.Out, 100_000) }},
				{"at most 100 KB a connection in", func() error { return relay.Limit(lab.In, 100_000) }},
				{"a cut", relay.Cut},
			}
			for _, s := range steps {
				if err := s.do(); err != nil {
					t.Fatalf("%s: %v", s.name, err)
				}
				loads.goOn(t, s.name)
				loads.goOn(t, s.name)
				if err := relay.Clear(); err != nil {
					t.Fatalf("after %s: %v", s.name, err)
				}
				loads.goOn(t, "after "+s.name)
			}
			// Nothing gets through, neither on the connections that there are nor on
			// new ones, and later it does.
			for what, do := range map[string]func() error{
				"nothing came in":  func() error { return relay.Hang(lab.In) },
				"nothing went out": func() error { return relay.Hang(lab.Out) },
				"nothing moved":    func() error { return relay.Hang(lab.Both) },
				"all was reset":    func() error { return relay.Reset(lab.Both, 300*time.Millisecond) },
			} {
				if err := do(); err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(2*time.Second, func() {
					if err := relay.Clear(); err != nil {
						t.Error(err)
					}
				})
				loads.goOn(t, "after "+what)
				loads.goOn(t, "long after "+what)
			}
			loads.finish(t)
		})
	}
}

// relayedNode joins a node that reaches the server through a relay only.
func (c *cluster) relayedNode(t *testing.T, name string, flags ...string) *lab.Relay {
	t.Helper()
	under, client := bin(t)
	relay, err := lab.NewRelay("127.0.0.1:" + portOf(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	args := []string{filepath.Join(under, "hawser-agent"), "--node-name", name, "--data-dir", filepath.Join(c.dir, "nodes", name), "--eviction-hard="}
	join := c.joinCommand(t, filepath.Join(client, "hawser"))
	for i, word := range join {
		if word == "--server" {
			join[i+1] = "https://" + relay.Addr()
		}
	}
	run(t, append(append(args, join[1:]...), flags...), filepath.Join(c.dir, name))
	c.waitNode(t, name)
	// Containers outlive their agent: they go while it is there.
	t.Cleanup(func() { c.mustKubectl(t, "", "delete", "pods", "--all", "--now") })
	return relay
}
