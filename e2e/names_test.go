// Whose a node's name is: that of a machine that says it again, of one that finds
// another Node under it, and of two at once.

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Many nodes come back at once, each to a Node object that somebody has meddled
// with meanwhile: each is itself again, and what was others' say is left alone.
func TestRegisterAgain(t *testing.T) {
	t.Parallel()
	var args []string
	for _, arg := range append(append([]string{}, quickLifecycle...), quickTunnel...) {
		args = append(args, "--server-arg="+arg)
	}
	for _, arg := range append(append([]string{}, quickTunnel...), quickAgent...) {
		args = append(args, "--agent-arg="+arg)
	}
	const nodes = 5
	c := startUp(t, append(args, "--nodes", fmt.Sprint(nodes))...)
	c.settle(t)
	before, uids := map[string]*corev1.Node{}, map[string]types.UID{}
	list, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range list.Items {
		n := &list.Items[i]
		before[n.Name], uids[n.Name] = n, n.UID
	}
	if len(before) != nodes {
		t.Fatalf("%d nodes, want %d", len(before), nodes)
	}

	var agents [][]string
	for i := range nodes {
		agents = append(agents, c.kill(t, fmt.Sprintf("node-%d", i+1)))
	}
	c.meddle(t, uids)
	server := c.kill(t, "server")
	for i, args := range agents { // the server refuses them
		run(t, args, filepath.Join(c.dir, "nodes", fmt.Sprintf("node-%d", i+1), "agent"))
	}
	run(t, server, filepath.Join(c.dir, "server"))
	eventually(t, "the API answers again", func() error {
		_, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	})

	h := c.watch(t)
	for name, was := range before {
		c.heardOf(t, name)
		h.until(t, name+" is itself again", func() error { return asBefore(h.latest(name), was) })
		if now := h.latest(name).UID; uids[name] != "" && now != uids[name] || uids[name] == "" && now == was.UID {
			t.Errorf("the uid of %s is %s, it was %q before it came back and %s at first", name, now, uids[name], was.UID)
		}
	}
	if n := h.latest("node-3"); !n.Spec.Unschedulable || n.Labels["team"] != "blue" || taint(n, "mine", corev1.TaintEffectNoSchedule) == nil {
		t.Errorf("what an administrator has set of node-3 is not there any more: %v, %v", n.Labels, n.Spec)
	}
	now, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(now.Items) != nodes {
		t.Errorf("there were %d nodes and are %d", nodes, len(now.Items))
	}
}

// meddle makes the objects of all nodes another: that of the first has labels of
// another machine, that of the second another machine's status, the third is
// cordoned, labelled and tainted, the fourth is gone (its uid is made empty), and
// the fifth was made by hand (its uid is made that of the new one).
func (c *cluster) meddle(t *testing.T, uids map[string]types.UID) {
	t.Helper()
	nodes := c.client.CoreV1().Nodes()
	c.mustKubectl(t, "", "label", "node", "node-1", "--overwrite", corev1.LabelHostname+"=elsewhere", corev1.LabelArchStable+"=vax", corev1.LabelOSStable+"-")
	const status = `{"status":{"addresses":[{"type":"Hostname","address":"elsewhere"}],"capacity":{"cpu":"9999","memory":"1Ki"},"allocatable":{"cpu":"9999","memory":"1Ki"},
		"nodeInfo":{"bootID":"another","kubeletVersion":"v0.0.1"},"conditions":[{"type":"Ready","status":"False","reason":"Meddled","message":"no"},{"type":"DiskPressure","status":"True"}]}}`
	_, err := nodes.Patch(t.Context(), "node-2", types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status")
	must(t, err)
	c.mustKubectl(t, "", "cordon", "node-3")
	c.mustKubectl(t, "", "label", "node", "node-3", "team=blue")
	c.mustKubectl(t, "", "taint", "node", "node-3", "mine=:NoSchedule")
	must(t, nodes.Delete(t.Context(), "node-4", metav1.DeleteOptions{}))
	uids["node-4"] = ""
	must(t, nodes.Delete(t.Context(), "node-5", metav1.DeleteOptions{}))
	n, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-5"}}, metav1.CreateOptions{})
	must(t, err)
	uids["node-5"] = n.UID
}

// asBefore says in what a node that is back differs from what it was, as far as it
// has the say in that.
func asBefore(now, was *corev1.Node) error {
	if condition(now, corev1.NodeReady).Status != corev1.ConditionTrue || condition(now, corev1.NodeDiskPressure).Status != corev1.ConditionFalse || shunned(now) {
		return fmt.Errorf("conditions %v, taints %v", now.Status.Conditions, now.Spec.Taints)
	}
	for _, key := range []string{corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable} {
		if now.Labels[key] != was.Labels[key] {
			return fmt.Errorf("label %s was %q and is %q", key, was.Labels[key], now.Labels[key])
		}
	}
	if now.Status.NodeInfo.BootID != was.Status.NodeInfo.BootID || now.Status.NodeInfo.KubeletVersion != was.Status.NodeInfo.KubeletVersion ||
		fmt.Sprint(now.Status.Addresses) != fmt.Sprint(was.Status.Addresses) {
		return fmt.Errorf("status %v, %v", now.Status.NodeInfo, now.Status.Addresses)
	}
	for _, of := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods} {
		if is, want := now.Status.Capacity[of], was.Status.Capacity[of]; is.Cmp(want) != 0 {
			return fmt.Errorf("capacity of %s was %s and is %s", of, want.String(), is.String())
		}
	}
	return nil
}

// A machine without a certificate does not get the name of a node, be that node alive
// or silent, before an administrator allows it, for it may have been made anew. Who
// had the name before stops what it runs and says why.
func TestTwins(t *testing.T) {
	c := startQuick(t, "--nodes", "2")
	node, err := c.lab(t).Node("node-1")
	must(t, err)
	h := c.watch(t)
	c.hold(t, "once", c.holding(t, "node-1", unreachable(nil)))
	once := c.held(t, h, "once", "node-1")
	uid := h.latest("node-1").UID
	under, client := bin(t)
	twin := filepath.Join(c.dir, "twin")
	args := append(append([]string{filepath.Join(under, "hawser-agent")}, c.joinCommand(t, filepath.Join(client, "hawser"))[1:]...),
		"--node-name", "node-1", "--data-dir", twin, "--eviction-hard=")
	args = append(append(args, quickTunnel...), quickAgent...)
	refused := func() {
		oneLine(t, exec.CommandContext(t.Context(), args[0], args[1:]...),
			`node name "node-1" is held by the key of another machine`, "choose another --node-name", "hawser node allow node-1")
		if n := c.starts(t, once.UID); n != 1 {
			t.Errorf("once was started %d times", n)
		}
	}

	refused()
	c.aliveIs(t, once, 1)
	cut(t, node)
	c.silent(t, h, "node-1")
	refused()

	c.hawser(t, "node", "allow", "node-1")
	mark := c.mark(t, "node-1")
	// A machine of its own would not have the groups of node-1's containers, which are ended as lost.
	run(t, append([]string{"unshare", "--mount", "sh", "-c", `umount -R /sys/fs/cgroup && exec "$0" "$@"`}, args...), twin)
	t.Cleanup(func() { c.mustKubectl(t, "", "delete", "pods", "--all", "--now") }) // containers outlive their agent
	since := c.watch(t)
	back(t, since, "node-1")
	eventually(t, "once runs there too, which nobody can know better", func() error {
		if n := c.starts(t, once.UID); n != 2 {
			return fmt.Errorf("started %d times", n)
		}
		return nil
	})

	heal(t, node)
	mark.until(t, patience, "does not admit this node any more", "hawser node allow node-1")
	c.aliveIs(t, once, 1)
	if n := c.starts(t, once.UID); n != 2 {
		t.Errorf("once was started %d times", n)
	}
	stays(t, h, once)
	for _, v := range since.versions("node-1") {
		if v.UID != uid {
			t.Errorf("node-1 had the uid %s and has %s", uid, v.UID)
			break
		}
	}
}
