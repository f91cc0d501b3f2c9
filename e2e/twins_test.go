// A node's agent that stands still while another takes its place.

package e2e

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What the first of two agents with one identity has been kept from saying it never
// says: when it goes on, the node is the other one's, and its streams have ended.
func (m *mixed) testSupersededWhileStopped(t *testing.T, n nodeOver) {
	h := m.watch(t)
	pod := "held-" + n.Name
	m.hold(t, pod, m.holding(t, n.Name, unreachable(nil)))
	held := m.held(t, h, pod, n.Name)
	follow := m.begin(t, "started", "exec", pod, "--", "sh", "-c", "echo started; exec sleep 10000")

	resume := stop(t, m.pid(t, n.Name))
	mark := m.mark(t, n.Name)
	m.twin(t, n)
	taken := h.pod(t, "the other agent runs the pod", func(p *corev1.Pod) bool {
		return p.UID == held.UID && podReady(p) == corev1.ConditionTrue && containerOf(p) != containerOf(held)
	})
	follow.mustFail(t)
	from := len(h.allPods())
	resume()
	mark.until(t, patience, agentFenced)
	m.aliveIs(t, taken, 1) // the first agent ends what it has run
	for range 3 {
		m.heardOf(t, n.Name)
	}
	for _, p := range h.allPods()[from:] {
		if p.UID == held.UID && containerOf(p) == containerOf(held) {
			t.Errorf("the agent that was superseded has spoken of %s", pod)
			break
		}
	}
	m.execs(t, pod)
}

// containerOf is the id of a pod's container.
func containerOf(p *corev1.Pod) string {
	if len(p.Status.ContainerStatuses) != 1 {
		return ""
	}
	return p.Status.ContainerStatuses[0].ContainerID
}

// twin runs another agent with the identity of a node's, and on the same network,
// with flags of its own beside those.
func (c *cluster) twin(t *testing.T, n nodeOver, flags ...string) {
	t.Helper()
	dir := filepath.Join(c.dir, "nodes", "twin-of-"+n.Name)
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(filepath.Join(c.dir, "nodes", n.Name, "pki"))))
	must(t, filepath.WalkDir(filepath.Join(dir, "pki"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return os.Chmod(path, 0o600)
	}))
	args := append(c.cmdline(t, n.Name), "--data-dir", dir)
	cmd := n.Command(context.Background(), args[0], append(args[1:], flags...)...)
	run(t, cmd.Args, filepath.Join(dir, "agent"))
}
