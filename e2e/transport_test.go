// The same cluster over each transport.

package e2e

import (
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/hawser-project/hawser/e2e/await"
)

// What goes over a tunnel goes over each of them, and none needs more than the
// one port. TestStreams does the same over the default.
func TestTransports(t *testing.T) {
	t.Parallel()
	var args []string
	if netnsHere(t) {
		args = []string{"--netns"}
	}
	overEach(t, everyTransport[1:], func(t *testing.T, c *cluster, _ string) {
		t.Run("log follow", func(t *testing.T) { testLogFollow(t, c) })
		t.Run("exec with a terminal", func(t *testing.T) { testTerminal(t, c) })
		t.Run("copy", func(t *testing.T) { testCopy(t, c) })
		t.Run("port-forward", func(t *testing.T) { testPortForward(t, c) })
		t.Run("closed port", func(t *testing.T) { testClosedPort(t, c) })
	}, args...)
}

// Where the port's UDP number is taken, the server says so.
func TestServerNeedsItsUDPPort(t *testing.T) {
	under, _ := bin(t)
	port := strconv.Itoa(await.FreePort(t))
	taken, err := net.ListenPacket("udp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	oneLine(t, exec.CommandContext(t.Context(), filepath.Join(under, "hawser"), "server", "--data-dir", shortTempDir(t),
		"--bind-address", "127.0.0.1", "--connect-port", "0", "--secure-port", port), port, "UDP", "in use")
}
