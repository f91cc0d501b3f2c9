// Processes that are killed: what was written stays, and what ran goes on.

package e2e

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/cmd/lab"
)

// netnsHere tells whether nodes can be put behind NATs, and says so if not.
func netnsHere(t *testing.T) bool {
	t.Helper()
	if err := lab.Check(); err != nil {
		t.Logf("SKIPPED: nodes are plain processes: %v", err)
		return false
	}
	return true
}

func TestKill(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "1")
	node := filepath.Join(c.dir, "nodes", "node-1")
	c.podWith(t, "steady", "", "", "sh", "-c", "echo started; exec sleep 1000")
	container := func() string {
		p, err := c.client.CoreV1().Pods("default").Get(t.Context(), "steady", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Status.ContainerStatuses) != 1 {
			t.Fatalf("container statuses: %v", p.Status.ContainerStatuses)
		}
		s := p.Status.ContainerStatuses[0]
		return fmt.Sprintf("%s restarts=%d", s.ContainerID, s.RestartCount)
	}
	before := container()
	c.mustKubectl(t, "", "create", "configmap", "kept", "--from-literal=a=1")

	// The server comes back on what it had written, and the agent finds it by
	// itself.
	run(t, c.kill(t, "server"), filepath.Join(c.dir, "server"))
	eventually(t, "the API answers again", func() error {
		_, err := c.client.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
		return err
	})
	c.works(t, "steady")
	if after := container(); after != before {
		t.Errorf("with the server killed the container was %s and is %s", before, after)
	}

	// The agent is gone for as long as it takes to look; the pods are not, and a log that is
	// followed goes on. A port-forward is lost, and says so.
	follow := loads{startNumbers(t, c, "node-1")}
	follow.goOn(t, "at first")
	lost := c.forwardPinged(t, "steady", "node-1")
	args := c.kill(t, "node-1")
	if left := c.shims(); len(left) != 2 {
		t.Errorf("%d supervisors of containers with the agent gone, want two", len(left))
	}
	run(t, args, filepath.Join(node, "agent"))
	c.works(t, "steady")
	lost()
	follow.goOn(t, "once there is another agent")
	follow.finish(t)
	if after := container(); after != before {
		t.Errorf("with the agent killed the container was %s and is %s", before, after)
	}

	// A container that is killed behind the agent's back is started again.
	args = c.kill(t, "node-1")
	for _, pid := range c.shims() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	run(t, args, filepath.Join(node, "agent"))
	eventually(t, "the container is restarted", func() error {
		if after := container(); !strings.HasSuffix(after, "restarts=1") {
			return errors.New(after)
		}
		return nil
	})
	c.works(t, "steady")
}

// forwardPinged has kubectl forward a port to a pod on a node, and stops the node until kubectl
// waits for the answer to a ping, one of which it sends every 10 s. lost waits until kubectl says
// that the connection is lost.
func (c *cluster) forwardPinged(t *testing.T, pod, node string) (lost func()) {
	t.Helper()
	cmd := c.startKubectl(t, "port-forward", pod, ":9")
	out, err := cmd.StdoutPipe()
	must(t, err)
	var stderr lines
	cmd.Stderr = &stderr
	must(t, cmd.Start())
	_, err = readUntil(out, "Forwarding from")
	must(t, err)
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, out) // ends with kubectl
		_ = cmd.Wait()                  // what it said is the news
		close(ended)
	}()
	must(t, syscall.Kill(c.pid(t, node), syscall.SIGSTOP))
	<-time.After(12 * time.Second)
	return func() {
		t.Helper()
		select {
		case <-ended:
			if !strings.Contains(stderr.String(), "lost connection to pod") {
				t.Errorf("kubectl port-forward said %q", stderr.String())
			}
		case <-time.After(patience):
			t.Error("kubectl port-forward still forwards to an agent that was killed")
		}
	}
}

// works waits until logs and exec of the pod answer.
func (c *cluster) works(t *testing.T, pod string) {
	t.Helper()
	eventually(t, "logs flow", func() error {
		out, stderr, code := c.kubectl(t, "", "logs", pod)
		if code != 0 || out != "started\n" {
			return errors.New(out + stderr)
		}
		return nil
	})
	eventually(t, "exec works", func() error {
		out, stderr, code := c.kubectl(t, "", "exec", pod, "--", "echo", "still here")
		if code != 0 || out != "still here\n" {
			return errors.New(out + stderr)
		}
		return nil
	})
}

// shims lists the supervisors of the cluster's containers.
func (c *cluster) shims() []int {
	var out []int
	for pid, cmdline := range processesOf(c.dir) {
		if strings.HasPrefix(cmdline, "hawser-shim ") {
			out = append(out, pid)
		}
	}
	return out
}
