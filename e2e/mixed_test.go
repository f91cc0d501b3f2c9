// A cluster whose nodes come over different transports.

package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hawser-project/hawser/cmd/lab"
)

// A mixed cluster has a node behind a NAT for each transport that resumes.
type mixed struct {
	*cluster
	links *lab.Lab
	nodes []nodeOver
}

// A nodeOver comes over one transport.
type nodeOver struct {
	*lab.Node
	transport string
	loads     // none at first
}

// startMixed starts one.
func startMixed(t *testing.T, args ...string) *mixed {
	t.Helper()
	if !netnsHere(t) {
		t.Skip("cutting links takes network namespaces")
	}
	c := startUp(t, append([]string{"--nodes", fmt.Sprint(len(resuming)), "--netns", "--agent-arg=--transport=" + resuming[0]}, args...)...)
	m := &mixed{cluster: c, links: c.lab(t)}
	for i, n := range m.links.Nodes() {
		m.nodes = append(m.nodes, nodeOver{Node: n, transport: resuming[i]})
		if i > 0 {
			c.restartNode(t, n, "--transport="+resuming[i])
		}
	}
	for _, n := range m.nodes {
		c.comesOver(t, n.transport, 1)
		c.waitNode(t, n.Name)
	}
	return m
}

// load starts loads on each node.
func (m *mixed) load(t *testing.T, start ...func(t *testing.T, c *cluster, node string) load) {
	t.Helper()
	for i, n := range m.nodes {
		for _, s := range start {
			m.nodes[i].loads = append(m.nodes[i].loads, s(t, m.cluster, n.Name))
		}
	}
	for _, n := range m.nodes {
		n.goOn(t, "before anything has happened")
	}
}

// restartNode kills the agent of a node and runs it again, with further flags.
func (c *cluster) restartNode(t *testing.T, n *lab.Node, flags ...string) {
	t.Helper()
	args := append(c.kill(t, n.Name), flags...)
	run(t, n.Command(t.Context(), args[0], args[1:]...).Args, filepath.Join(c.dir, "nodes", n.Name, "agent"))
}

// restart does so with all agents. They end with t.
func (m *mixed) restart(t *testing.T, flags ...string) {
	t.Helper()
	for _, n := range m.nodes {
		m.restartNode(t, n.Node, flags...)
	}
}

// each has something begin on all nodes, and then checks one after the other.
func (m *mixed) each(t *testing.T, name string, begin func(*testing.T, nodeOver), check func(*testing.T, nodeOver)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		for _, n := range m.nodes {
			begin(t, n)
		}
		for _, n := range m.nodes {
			t.Run(n.transport, func(t *testing.T) { check(t, n) })
		}
	})
}

// beside runs a part of the test for all nodes at a time.
func (m *mixed) beside(t *testing.T, name string, part func(*testing.T, nodeOver)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		for _, n := range m.nodes {
			t.Run(n.transport, func(t *testing.T) {
				if len(m.nodes) > 1 { // one waits for no other
					t.Parallel()
				}
				part(t, n)
			})
		}
	})
}

// finish finishes the loads of all nodes: nothing may have been lost.
func (m *mixed) finish(t *testing.T) {
	t.Helper()
	for _, n := range m.nodes {
		t.Run(n.transport, n.finish)
	}
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
