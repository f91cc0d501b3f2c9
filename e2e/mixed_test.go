// A cluster whose nodes come over different transports.

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
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
	c := startOver(t, resuming, append(args, "--netns")...)
	m := &mixed{cluster: c, links: c.lab(t)}
	for i, n := range m.links.Nodes() {
		m.nodes = append(m.nodes, nodeOver{Node: n, transport: resuming[i]})
	}
	return m
}

// nodeAt is the name of a cluster's node, from 0.
func nodeAt(i int) string { return fmt.Sprintf("node-%d", i+1) }

// startOver starts a cluster with a node over each of the transports, in their order.
func startOver(t *testing.T, transports []string, args ...string) *cluster {
	t.Helper()
	c := startUp(t, append([]string{"--nodes", fmt.Sprint(len(transports)), "--agent-arg=--transport=" + transports[0]}, args...)...)
	for i, transport := range transports[1:] {
		c.restartNode(t, nodeAt(i+1), "--transport="+transport)
	}
	for i, transport := range transports {
		c.comesOver(t, transport, 1)
		c.waitNode(t, nodeAt(i))
	}
	return c
}

// overEach runs a part of a test over each of the transports, one after the other, with the
// cluster of startOver: to start a server costs more than most parts. The pods of a part are
// bound to its node, and deleted after it.
func overEach(t *testing.T, transports []string, part func(t *testing.T, c *cluster, transport string), args ...string) {
	t.Helper()
	c := startOver(t, transports, args...)
	for i, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			t.Cleanup(func() { c.mustKubectl(t, "", "delete", "pods", "--all", "--now") })
			part(t, c.on(nodeAt(i)), transport)
		})
	}
}

// on is the cluster for pods that are bound to a node.
func (c *cluster) on(node string) *cluster {
	there := *c
	there.node = node
	return &there
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
func (c *cluster) restartNode(t *testing.T, node string, flags ...string) {
	t.Helper()
	args := append(c.kill(t, node), flags...)
	if slices.Contains(c.up.Args, "--netns") {
		n, err := c.lab(t).Node(node)
		must(t, err)
		args = n.Command(t.Context(), args[0], args[1:]...).Args
	}
	run(t, args, filepath.Join(c.dir, "nodes", node, "agent"))
}

// restart does so with all agents. They end with t.
func (m *mixed) restart(t *testing.T, flags ...string) {
	t.Helper()
	for _, n := range m.nodes {
		m.restartNode(t, n.Name, flags...)
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
