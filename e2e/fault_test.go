// Processes that are killed: what was written stays, and what ran goes on.

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/e2e/lab"
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
	c := startUp(t, "--nodes", "1")
	c.pod(t, "steady", "", "sh", "-c", "echo started; exec sleep 1000")
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

	t.Run("server", func(t *testing.T) {
		c.mustKubectl(t, "", "create", "configmap", "kept", "--from-literal=a=1")
		args := c.kill(t, "server")
		run(t, args, filepath.Join(c.dir, "server.log"))
		eventually(t, "the API answers again", func() error {
			_, err := c.client.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
			return err
		})
		// The agent finds the server by itself, and logs flow through the new session.
		eventually(t, "logs flow again", func() error {
			out, stderr, code := c.kubectl(t, "", "logs", "steady")
			if code != 0 || out != "started\n" {
				return errors.New(out + stderr)
			}
			return nil
		})
		if after := container(); after != before {
			t.Errorf("the container was %s and is %s", before, after)
		}
		t.Run("agent", func(t *testing.T) { killAgent(t, c, container, before) })
	})
}

func killAgent(t *testing.T, c *cluster, container func() string, before string) {
	args := c.kill(t, "node-1")
	run(t, args, filepath.Join(c.dir, "nodes", "node-1", "agent.log"))
	eventually(t, "exec works again", func() error {
		out, stderr, code := c.kubectl(t, "", "exec", "steady", "--", "echo", "still here")
		if code != 0 || out != "still here\n" {
			return errors.New(out + stderr)
		}
		return nil
	})
	if after := container(); after != before {
		t.Errorf("the container was %s and is %s", before, after)
	}
	// What ends while the agent is away is noticed when it is back.
	args = c.kill(t, "node-1")
	pids := processesOf(filepath.Join(c.dir, "nodes", "node-1"))
	if len(pids) == 0 {
		t.Error("no process of the pod outlived the agent")
	}
	run(t, args, filepath.Join(c.dir, "nodes", "node-1", "agent.log"))
	eventually(t, "the node is Ready", func() error {
		out, stderr, _ := c.kubectl(t, "", "get", "node", "node-1")
		if !strings.Contains(out, " Ready ") {
			return errors.New(out + stderr)
		}
		return nil
	})
}
