// Sessions of which one end does not want to outlive their connections.

package e2e

import (
	"testing"
)

// A transport that does not resume, and one with no detach window at an end, has sessions
// that end with their connection: streams fail then, with a word, and the next ones work. A log
// that is followed goes on by itself.
func TestNoWindow(t *testing.T) {
	t.Parallel()
	if !netnsHere(t) {
		t.Skip("cutting links takes network namespaces")
	}
	for i, of := range []string{"agent", "server"} {
		t.Run(of, func(t *testing.T) {
			var transports []string // every other one
			for j := i; j < len(everyTransport); j += 2 {
				transports = append(transports, everyTransport[j])
			}
			t.Parallel()
			overEach(t, transports, testNoWindow, "--netns", "--"+of+"-arg=--detach-window=0",
				"--agent-arg=--link-keepalive=1s", "--server-arg=--link-keepalive=1s")
		})
	}
}

func testNoWindow(t *testing.T, c *cluster, _ string) {
	c.podWith(t, "numbers", "", "", "sh", "-c", "i=0; while :; do i=$((i+1)); echo number $i; sleep 0.05; done")
	follow := loads{followLines(t, c, "numbers", numberLine)}
	follow.goOn(t, "at first")
	endless := c.begin(t, "line 5", "exec", "numbers", "--", "sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done")
	node, err := c.lab(t).Node(c.node)
	must(t, err)
	cut(t, node)
	endless.mustFail(t)
	for name, v := range c.metrics(t) {
		if metricIs(name, "hawser_hub_sessions_parked") && v > 0 {
			t.Errorf("%s %v", name, v)
		}
	}
	heal(t, node)
	c.execs(t, "numbers")
	follow.goOn(t, "once there is another session")
	follow.finish(t)
}
