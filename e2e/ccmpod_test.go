// The cloud controller manager as an addon: in a pod, as hawser manifest ccm prints it.

package e2e

import (
	"fmt"
	"testing"
)

// TestCloudControllerInPod: on a machine of the control plane that is not initialized it runs
// all the same, knows the API server and itself by what the pod is given, and initializes the
// machine, which takes pods only then.
func TestCloudControllerInPod(t *testing.T) {
	t.Parallel()
	c := &cloud{cluster: startUp(t, "--nodes", "1", "--agent-arg=--cloud-provider=external")}
	_, programs := bin(t)
	c.inventory(t, "machines: [{name: node-1, zone: z-1}]\n")
	c.mustKubectl(t, printed(t, "ccm --daemonset --image=none"), "apply", "--server-side", "-f", "-")
	// There is no image here: the program comes from the machine.
	const template = "/spec/template/spec"
	c.mustKubectl(t, "", "patch", "daemonset", "-n", "kube-system", "hawser-ccm", "--type=json", "-p", fmt.Sprintf(`[
		{"op":"add","path":"%[1]s/volumes/-","value":{"name":"programs","hostPath":{"path":%[2]q}}},
		{"op":"add","path":"%[1]s/containers/0/volumeMounts/-","value":{"name":"programs","mountPath":"/programs"}},
		{"op":"replace","path":"%[1]s/containers/0/command/0","value":"/programs/hawser-ccm"}]`, template, programs))
	c.mustKubectl(t, "", "create", "deployment", "web", "--image=none", "--", "sleep", "1000")
	if n := c.node(t, "node-1"); !hasTaint(n, "node.cloudprovider.kubernetes.io/uninitialized") {
		t.Errorf("nobody has initialized it: %v", n.Spec.Taints)
	}
	c.mustKubectl(t, "", "label", "node", "node-1", "node-role.kubernetes.io/control-plane=")
	eventually(t, "the machine is initialized", func() error {
		if n := c.node(t, "node-1"); hasTaint(n, "node.cloudprovider.kubernetes.io/uninitialized") || n.Labels["topology.kubernetes.io/zone"] != "z-1" {
			out, said, _ := c.kubectl(t, "", "logs", "-n", "kube-system", "-l", "app=hawser-ccm", "--tail=20")
			return fmt.Errorf("%v, %v\n%s%s", n.Spec.Taints, n.Labels, out, said)
		}
		return nil
	})
	c.mustKubectl(t, "", "wait", "deployment/web", "--for=condition=Available", "--timeout=2m")
	if c.leader(t) == "" {
		t.Error("nobody leads")
	}
}
