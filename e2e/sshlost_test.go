// A node without a tunnel that is cut off: no more is known of it than its silence.

package e2e

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestSSHPartition is TestPartition for a node that is reached by its sshd: it is
// given up, evicted from and taken back as documented.
func TestSSHPartition(t *testing.T) {
	if !netnsHere(t) {
		t.Skip("cutting links takes network namespaces")
	}
	t.Parallel()
	var args []string
	for _, arg := range slices.Concat(quickLifecycle, quickServer) {
		args = append(args, "--server-arg="+arg)
	}
	c, s, _ := sshCluster(t, args, quickAgent)
	s.start(t)
	if out, err := c.pinned(t, s, fingerprintOf(t, s.path("host.pub"))).CombinedOutput(); err != nil {
		t.Fatalf("pin: %v\n%s", err, out)
	}
	h := c.watch(t)
	joinForeign(t, c, "other") // so that not all nodes are lost at once
	back(t, h, "node-1")
	t.Cleanup(func() { c.mustKubectl(t, "", "delete", "pods", "--all", "--now") }) // they outlive their agent
	c.hold(t, "leaves", c.holding(t, "node-1"))
	c.hold(t, "stays", c.holding(t, "node-1", unreachable(nil)))
	leaves, kept := c.held(t, h, "leaves", "node-1"), c.held(t, h, "stays", "node-1")
	pids := processesOfPod(kept.UID)

	cut(t, s.node)
	tainted := c.silent(t, h, "node-1")
	going := h.pod(t, "leaves is told to go", func(p *corev1.Pod) bool { return p.UID == leaves.UID && p.DeletionTimestamp != nil })
	timely(t, "leaves is told to go", toldToGo(going), tainted.TimeAdded.Add(tolerated))
	c.aliveIs(t, leaves, 1)
	if h.goneAlready(leaves.UID) != nil {
		t.Error("the object of leaves was deleted while its process ran")
	}

	heal(t, s.node)
	back(t, h, "node-1")
	last := h.lost(t, leaves)
	c.aliveIs(t, last, 0)
	disrupted(t, last, "DeletionByTaintManager")
	c.again(t, h, kept, pids)
	stays(t, h, kept)
	c.answers(t, kept)
	for _, v := range h.versions("node-1") {
		if i := slices.IndexFunc(v.Status.Conditions, func(c corev1.NodeCondition) bool { return strings.HasPrefix(string(c.Type), "hawser.dev/Tunnel") }); i >= 0 {
			t.Errorf("a node without a tunnel has the condition %v", v.Status.Conditions[i])
			break
		}
	}
}
