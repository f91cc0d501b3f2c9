// A terminal that is closed.

package e2e

import (
	"syscall"
	"testing"
)

// TestHangUp: hawser up ends as it does after an interrupt when its terminal is closed. Of its
// pods, too, nothing is left (cluster.stop).
func TestHangUp(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes=1")
	c.podWith(t, "p", "", "", "sleep", "10000")
	c.ends = syscall.SIGHUP
}
