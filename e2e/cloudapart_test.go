// The controllers of a cloud controller manager, each in a process of its own.

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/e2e/await"
)

// TestCloudControllersApart: the controller that initializes nodes runs without the one that
// deletes them, and the other way round, by --controllers.
func TestCloudControllersApart(t *testing.T) {
	t.Parallel()
	const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	c := &cloud{cluster: startUp(t, "--nodes", "1", "--agent-arg=--cloud-provider=external")}
	under, _ := bin(t)
	inventory := filepath.Join(c.dir, "inventory.yaml")
	must(t, os.WriteFile(inventory, []byte("machines: [{name: node-1, zone: z-1}]\n"), 0o600))
	start := func(name string, others ...string) (pid int) {
		t.Helper()
		flag := "--controllers=cloud-" + name + "-controller"
		for _, other := range others {
			flag += ",-" + other + "-controller"
		}
		c.runCCM(t, []string{filepath.Join(under, "hawser-ccm")}, name, c.kubeconfig(), await.FreePort(t),
			"--cloud-config", inventory, "--node-monitor-period", "1s", "--leader-elect=false", flag)
		eventually(t, name+" runs without the others", func() error {
			b, err := os.ReadFile(filepath.Join(c.dir, name+".log"))
			for _, other := range others {
				if !strings.Contains(string(b), fmt.Sprintf(`"%s-controller" is disabled`, other)) {
					err = errors.Join(err, errors.New(other+" is not disabled"))
				}
			}
			return err
		})
		b, err := os.ReadFile(filepath.Join(c.dir, name+".pid"))
		must(t, err)
		pid, err = strconv.Atoi(string(b))
		must(t, err)
		return pid
	}
	const gone = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"gone"}}`
	c.mustKubectl(t, gone, "create", "-f", "-")
	pid := start("node-lifecycle", "cloud-node")
	eventually(t, "the node without a machine is deleted", func() error {
		_, err := c.client.CoreV1().Nodes().Get(t.Context(), "gone", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errNotYet)
	})
	if n := c.node(t, "node-1"); !hasTaint(n, uninitialized) {
		t.Errorf("the lifecycle controller has initialized it: %v", n.Spec.Taints)
	}
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	c.mustKubectl(t, gone, "create", "-f", "-")
	start("node", "cloud-node-lifecycle")
	eventually(t, "the node with a machine is initialized", func() error {
		if n := c.node(t, "node-1"); hasTaint(n, uninitialized) || n.Labels[corev1.LabelTopologyZone] != "z-1" {
			return fmt.Errorf("%v, %v", n.Spec.Taints, n.Labels)
		}
		return nil
	})
	c.node(t, "gone")
}
