// Nodes that are restarted while nobody hears of them, that are deleted while they
// run, and that are in reach and say nothing.

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/cmd/lab"
)

// rerun starts an agent that was killed once more, on its node, by its command
// line and more.
func (c *cluster) rerun(t *testing.T, node *lab.Node, args []string, more ...string) {
	t.Helper()
	args = append(args, more...)
	run(t, node.Command(t.Context(), args[0], args[1:]...).Args, filepath.Join(c.dir, "nodes", node.Name, "agent"))
}

// An agent that finds no server keeps the pods that it had, through a restart of
// its own and of the whole machine, and once it finds one does as it is told.
func TestOffline(t *testing.T) {
	c := startQuick(t, "--nodes", "2")
	node, err := c.lab(t).Node("node-1")
	must(t, err)
	h := c.watch(t)
	c.hold(t, "kept", c.holding(t, "node-1", unreachable(nil)))
	c.hold(t, "leaves", c.holding(t, "node-1"))
	kept, leaves := c.held(t, h, "kept", "node-1"), c.held(t, h, "leaves", "node-1")
	pids := processesOfPod(kept.UID)
	uid := h.latest("node-1").UID

	cut(t, node)
	tainted := c.silent(t, h, "node-1")
	going := h.pod(t, "leaves is told to go", func(p *corev1.Pod) bool { return p.UID == leaves.UID && p.DeletionTimestamp != nil })
	timely(t, "leaves is told to go", toldToGo(going), tainted.TimeAdded.Add(tolerated))

	args := c.kill(t, "node-1")
	c.rerun(t, node, args)
	if now := processesOfPod(kept.UID); fmt.Sprint(now) != fmt.Sprint(pids) {
		t.Errorf("the processes of kept were %v and are %v", pids, now)
	}
	// Who starts it again must know what it is, without having been told anew.
	for _, pid := range pids {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	c.startedAgain(t, kept, 2)

	args = c.kill(t, "node-1")
	for _, pid := range c.shimsOf("node-1") {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	for _, p := range []*corev1.Pod{kept, leaves} {
		c.aliveIs(t, p, 0)
	}
	c.rerun(t, node, args)
	c.startedAgain(t, kept, 3)
	c.startedAgain(t, leaves, 2)
	if h.goneAlready(leaves.UID) != nil {
		t.Error("the object of leaves was deleted while its process ran")
	}

	heal(t, node)
	back(t, h, "node-1")
	if now := h.latest("node-1").UID; now != uid {
		t.Errorf("the node's uid was %s and is %s", uid, now)
	}
	c.aliveIs(t, h.lost(t, leaves), 0)
	h.until(t, "kept is ready, with both restarts", func() error {
		p := h.latestPod(kept.UID)
		if s := p.Status.ContainerStatuses; podReady(p) != corev1.ConditionTrue || len(s) != 1 || s[0].RestartCount != 2 {
			return fmt.Errorf("%v, %v", p.Status.Conditions, s)
		}
		return nil
	})
	c.startedAgain(t, kept, 3)
	stays(t, h, kept)
	c.answers(t, kept)
}

// startedAgain waits until a pod's process has been started so many times, and
// checks that there is one.
func (c *cluster) startedAgain(t *testing.T, p *corev1.Pod, times int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has been started %d times", p.Name, times), func() error {
		if n := c.starts(t, p.UID); n != times {
			return fmt.Errorf("it was, %d times", n)
		}
		return nil
	})
	c.aliveIs(t, p, 1)
}

// shimsOf are the supervisors of a node's containers.
func (c *cluster) shimsOf(node string) []int {
	dirs, _ := filepath.Glob(filepath.Join(c.dir, "nodes", node, "runtime", "c", "*"))
	var out []int
	for pid, cmdline := range processesOf(c.dir) {
		if words := strings.Fields(cmdline); len(words) > 1 && words[0] == "hawser-shim" &&
			slices.ContainsFunc(dirs, func(dir string) bool { return filepath.Base(dir) == words[1] }) {
			out = append(out, pid)
		}
	}
	return out
}

// A Node that is deleted takes its pods with it, and is not made again by an agent
// that did not ask for that by being restarted. The agent that runs is not admitted any
// more and stops what it ran; restarted, it joins anew with its join token.
func TestNodeDeleted(t *testing.T) {
	c := startQuick(t, "--nodes", "2")
	node, err := c.lab(t).Node("node-1")
	must(t, err)
	h := c.watch(t)
	c.hold(t, "orphan", c.holding(t, "node-1"))
	orphan := c.held(t, h, "orphan", "node-1")
	uid := h.latest("node-1").UID
	eventually(t, "the node lifecycle controller knows the node", func() error { // maybe for long
		registered, err := c.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=RegisteredNode,involvedObject.name=node-1"})
		if err == nil && len(registered.Items) == 0 {
			err = errNotYet
		}
		return err
	})
	from := time.Now().Truncate(time.Second)
	c.mustKubectl(t, "", "delete", "node", "node-1")
	h.until(t, "it is told that the node is removed", func() error {
		if h.told("RemovingNode", "node-1", "") == 0 {
			return errNotYet
		}
		return nil
	})
	last := h.lost(t, orphan)
	disrupted(t, last, "DeletionByPodGC")
	if last.Status.Phase != corev1.PodFailed || *last.DeletionGracePeriodSeconds != 0 {
		t.Errorf("the pod of a deleted node ended as %s, with %d s to do so", last.Status.Phase, *last.DeletionGracePeriodSeconds)
	}
	timely(t, "the pod is deleted", last.DeletionTimestamp.Time, from.Add(quarantine))
	c.aliveIs(t, orphan, 0)
	eventually(t, "the zone has one node", func() error {
		if n := c.metric(t, `node_collector_zone_size{zone=""}`); n != 1 {
			return fmt.Errorf("it has %v", n)
		}
		return nil
	})
	c.hold(t, "orphan", c.holding(t, "")) // its name is free
	c.held(t, h, "orphan", "node-2")
	if n, err := c.client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the deleted node is %v (%v)", n, err)
	}

	c.rerun(t, node, c.kill(t, "node-1"))
	h.until(t, "the node is back", func() error {
		n := h.latest("node-1")
		if n.UID == uid || condition(n, corev1.NodeReady).Status != corev1.ConditionTrue || shunned(n) {
			return fmt.Errorf("uid %s, %v, %v", n.UID, n.Status.Conditions, n.Spec.Taints)
		}
		return nil
	})
	c.hold(t, "new", c.holding(t, "node-1"))
	c.answers(t, c.held(t, h, "new", "node-1"))
	if n := c.starts(t, orphan.UID); n != 1 {
		t.Errorf("the pod of the deleted node was started %d times", n)
	}
}

// A node whose tunnel works and whose heartbeats do not come is evicted from like
// any other, and it is plain to see what is wrong with it. As it can be reached,
// what is evicted ends at once.
func TestHeartbeatsLost(t *testing.T) {
	c := startQuick(t, "--nodes", "2")
	node, err := c.lab(t).Node("node-1")
	must(t, err)
	h := c.watch(t)
	c.hold(t, "leaves", c.holding(t, "node-1"))
	leaves := c.held(t, h, "leaves", "node-1")
	// An agent with a heartbeat an hour.
	c.rerun(t, node, c.kill(t, "node-1"), "--node-lease-duration-seconds=14400", "--node-status-update-frequency=1h")
	tainted := c.silent(t, h, "node-1")
	for _, of := range []corev1.NodeConditionType{tunnelConnected, dataPathReady} {
		if got := condition(h.latest("node-1"), of); got.Status != corev1.ConditionTrue {
			t.Errorf("%s of a node that can be reached is %v", of, got)
		}
	}
	c.explained(t, "node-1", "node-component")
	last := h.lost(t, leaves)
	timely(t, "leaves is told to go", toldToGo(h.pod(t, "leaves is told to go", func(p *corev1.Pod) bool {
		return p.UID == leaves.UID && p.DeletionTimestamp != nil
	})), tainted.TimeAdded.Add(tolerated))
	disrupted(t, last, "DeletionByTaintManager")
	c.aliveIs(t, last, 0)
	if n := evicting(h.latest("node-1")); n == nil {
		t.Error("the node was heard of meanwhile")
	}
	// With heartbeats again it is as any other.
	c.rerun(t, node, c.kill(t, "node-1"), quickAgent...)
	back(t, h, "node-1")
	c.explained(t, "node-1", "none")
}
