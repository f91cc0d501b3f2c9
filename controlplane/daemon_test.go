package controlplane

// DaemonSets as people use them: kubectl's verbs against a real API server and the
// controllers.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

const daemonManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: front}
spec:
  selector: {matchLabels: {app: front}}
  template:
    metadata: {labels: {app: front}}
    spec: {containers: [{name: c, image: one}]}
`

// machine makes a node that is ready and has room.
func (c workload) machine(name string) {
	c.t.Helper()
	nodes := c.admin.CoreV1().Nodes()
	if _, err := nodes.Create(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := nodes.Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
		n.Status.Capacity = n.Status.Allocatable
		_, err = nodes.UpdateStatus(c.t.Context(), n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// TestDaemons: a pod on each node, which the scheduler binds; rolled out, shown and undone.
func TestDaemons(t *testing.T) {
	c := workload{startCluster(t)}
	defer c.serving()()
	c.machine("left")
	c.machine("right")
	file := filepath.Join(t.TempDir(), "daemon.yaml")
	if err := os.WriteFile(file, []byte(daemonManifest), 0o600); err != nil {
		t.Fatal(err)
	}
	c.sees(`^daemonset.apps/front created\n$`, "create", "-f", file)
	on := func() string {
		at := map[string]int{}
		for _, p := range c.pods("app=front") {
			at[p.Spec.NodeName+"="+p.Spec.Containers[0].Image]++
		}
		return fmt.Sprint(at)
	}
	c.becomes("map[left=one:1 right=one:1]", on)
	c.sees(`daemon set "front" successfully rolled out`, "rollout", "status", "ds/front")
	c.sees(`^front +2 +2 +2 +2 +2 +<none> +\d+s$`, "get", "ds")
	c.sees(`SuccessfulCreate .*daemonset-controller.*Created pod: front-`, "describe", "ds", "front")
	c.sees(`image updated`, "set", "image", "ds/front", "*=two")
	c.sees(`successfully rolled out`, "rollout", "status", "ds/front")
	c.becomes("map[left=two:1 right=two:1]", on)
	c.sees(`^1 +<none>$\s^2 +<none>$`, "rollout", "history", "ds/front")
	c.sees(`Image:\s+one$`, "rollout", "history", "ds/front", "--revision=1")
	c.sees(`skipped rollback \(current template already matches revision 2\)`, "rollout", "undo", "ds/front", "--to-revision=2")
	c.sees(`^daemonset.apps/front rolled back\n$`, "rollout", "undo", "ds/front")
	c.sees(`successfully rolled out`, "rollout", "status", "ds/front")
	c.becomes("map[left=one:1 right=one:1]", on)
	c.sees(`^2 +<none>$\s^3 +<none>$`, "rollout", "history", "ds/front")
	c.sees(`restarted`, "rollout", "restart", "ds/front")
	c.sees(`successfully rolled out`, "rollout", "status", "ds/front")
	c.sees(`^front-\S+ +daemonset.apps/front +4 +\d+s$`, "get", "controllerrevisions")

	c.sees(`deleted`, "delete", "ds/front", "--cascade=orphan")
	before := c.names()
	c.sees(`created`, "create", "-f", file)
	c.becomes("2 scheduled", func() string { // the orphans are adopted, and replaced, for they were restarted
		out, err := c.kubectl("get", "ds/front", "-o", "jsonpath={.status.updatedNumberScheduled} scheduled")
		return fmt.Sprint(out, map[bool]string{true: "failed"}[err != nil])
	})
	if before == "" {
		t.Error("the pods went with the DaemonSet that orphans")
	}
	c.sees(`deleted`, "delete", "ds/front", "--cascade=foreground")
	c.becomes("", c.names)
	if !c.writers.wrote("daemonset-controller") {
		t.Error("nothing was written by daemonset-controller")
	}
}

// names are the names of the pods and controller revisions that there are.
func (c workload) names() string {
	out, err := c.kubectl("get", "pods,controllerrevisions", "-o", "name")
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(out)
}
