// Networks that let UDP through, or do not, or do so later.

package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
)

// Where UDP is blocked the tunnel is over TCP; once it is not, new streams go over
// QUIC and the old ones end where they began. When it is blocked again, new ones
// are over TCP and the old ones wait.
func TestUDPBlocked(t *testing.T) {
	if !netnsHere(t) {
		t.Skip("blocking UDP takes network namespaces")
	}
	t.Parallel()
	c := startUp(t, "--nodes", "1", "--netns", "--agent-arg=--transport-probe-interval=2s",
		"--agent-arg=--link-keepalive=2s", "--server-arg=--link-keepalive=2s")
	node, err := c.lab(t).Node("node-1")
	must(t, err)
	// Any other session than those of the agent to come is gone with this one.
	c.comesOver(t, "quic", 1)
	must(t, node.BlockUDP(t.Context(), true))
	args := c.kill(t, "node-1")
	run(t, node.Command(t.Context(), args[0], args[1:]...).Args, filepath.Join(c.dir, "nodes", "node-1", "agent"))
	c.comesOver(t, "yamux", 1)
	c.comesOver(t, "quic", 0)
	loads := startLoads(t, c)
	loads.goOn(t, "over TCP")

	must(t, node.BlockUDP(t.Context(), false))
	c.comesOver(t, "quic", 1)
	loads.goOn(t, "on the session that is left")
	c.comesOver(t, "yamux", 1)
	loads.finish(t)

	late := startKeys(t, c, "")
	mark := c.mark(t, "node-1")
	must(t, node.BlockUDP(t.Context(), true))
	mark.until(t, patience, "msg=connected", "transport=yamux")
	c.execs(t, "shell")
	must(t, node.BlockUDP(t.Context(), false))
	loads = append(loads[:0], late)
	loads.goOn(t, "over QUIC again")
	loads.finish(t)
}

// comesOver waits until there are that many sessions over a transport.
func (c *cluster) comesOver(t *testing.T, transport string, n int) {
	t.Helper()
	sessions := fmt.Sprintf("hawser_hub_sessions{transport=%q}", transport)
	eventually(t, fmt.Sprintf("%d sessions over %s", n, transport), func() error {
		if got := c.metric(t, sessions); got != float64(n) {
			return fmt.Errorf("%s %v", sessions, got)
		}
		return nil
	})
}
