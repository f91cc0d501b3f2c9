// Nodes that are cut off: what becomes of their pods, by what the objects say and
// by what runs on the node.

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/cmd/lab"
)

const (
	// grace is how long a node may be silent in these tests, and tolerated how
	// long pods that say nothing about it stay on one that is unreachable.
	grace     = 8 * time.Second
	tolerated = 3 * time.Second
	// quarantine is how long a node must be missing before its pods are deleted.
	quarantine = 2 * time.Second
	// late is by how much anything may be late on a slow machine.
	late = 30 * time.Second

	tunnelConnected corev1.NodeConditionType = "hawser.dev/TunnelConnected"
	dataPathReady   corev1.NodeConditionType = "hawser.dev/DataPathReady"
)

// quickLifecycle are flags of whoever runs the controllers, and quickTunnel of
// both ends of a tunnel.
var (
	quickLifecycle = []string{
		"--node-monitor-period=500ms",
		"--node-monitor-grace-period=" + grace.String(),
		"--node-eviction-rate=10",
		"--pod-gc-sync-period=1s",
		"--pod-gc-orphan-quarantine=" + quarantine.String(),
	}
	quickTunnel = []string{"--link-keepalive=1s"}
	quickServer = []string{
		fmt.Sprintf("--default-unreachable-toleration-seconds=%v", tolerated.Seconds()),
		fmt.Sprintf("--default-not-ready-toleration-seconds=%v", tolerated.Seconds()),
	}
	quickAgent = []string{"--node-status-update-frequency=1s", "--node-lease-duration-seconds=4"}
)

// startQuick starts a cluster with these, behind NATs, and waits until its nodes
// take pods. args override them.
func startQuick(t *testing.T, args ...string) *cluster {
	t.Helper()
	if !netnsHere(t) {
		t.Skip("cutting links takes network namespaces")
	}
	t.Parallel()
	c := startUp(t, slices.Concat(quickArgs(), args)...)
	c.settle(t)
	return c
}

func quickArgs() []string {
	args := []string{"--netns"}
	for _, arg := range slices.Concat(quickLifecycle, quickTunnel, quickServer) {
		args = append(args, "--server-arg="+arg)
	}
	for _, arg := range slices.Concat(quickTunnel, quickAgent) {
		args = append(args, "--agent-arg="+arg)
	}
	return args
}

// settle waits until all nodes take pods: for a moment, those that are ready are
// still out of bounds.
func (c *cluster) settle(t *testing.T) {
	t.Helper()
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	h := c.watch(t)
	for _, n := range nodes.Items {
		back(t, h, n.Name)
		if left := h.latest(n.Name).Spec.Taints; len(left) > 0 {
			t.Fatalf("%s takes no pods because of %v: this machine is short of something", n.Name, left)
		}
	}
}

// A node that is cut off is unreachable, and its pods are evicted when, and only
// if, their time is up; what runs there runs on until the node hears of it.
func TestPartition(t *testing.T) {
	t.Parallel()
	for _, transport := range everyTransport {
		t.Run(transport, func(t *testing.T) {
			c := startQuick(t, "--nodes", "2", "--agent-arg=--transport="+transport)
			node, err := c.lab(t).Node("node-1")
			if err != nil {
				t.Fatal(err)
			}
			t.Run("healed in time", func(t *testing.T) { testHealedInTime(t, c, node) })
			t.Run("healed too late", func(t *testing.T) { testHealedTooLate(t, c, node) })
		})
	}
}

// must fails the test upon an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// silent waits until a node that has been cut off is unreachable, its pods told
// to be not ready, and pods about to leave, and returns the taint of that. All of
// it must have come in this order, and not too early.
func (c *cluster) silent(t *testing.T, h *history, name string) *corev1.Taint {
	t.Helper()
	lost := h.node(t, name, "is Unknown", is(corev1.NodeReady, corev1.ConditionUnknown))
	ready := condition(lost, corev1.NodeReady)
	if ready.Reason != "NodeStatusUnknown" || ready.Message != "Kubelet stopped posting node status." {
		t.Errorf("%s is not ready because of %s: %s", name, ready.Reason, ready.Message)
	}
	for _, of := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		if s := condition(lost, of).Status; s != corev1.ConditionUnknown {
			t.Errorf("%s of %s is %s", of, name, s)
		}
	}
	lease, err := c.client.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	// The API keeps whole seconds of this, and all of that.
	timely(t, "the node is Unknown", ready.LastTransitionTime.Time, lease.Spec.RenewTime.Add(grace).Truncate(time.Second))

	noSchedule := h.node(t, name, "is out of bounds", func(n *corev1.Node) bool {
		return taint(n, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule) != nil
	})
	tainted := h.node(t, name, "is to be left", func(n *corev1.Node) bool { return evicting(n) != nil })
	since := evicting(tainted).TimeAdded
	if since == nil {
		t.Fatalf("the taint of %s does not say since when", name)
	}
	timely(t, "the NoSchedule taint is there", taint(noSchedule, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule).TimeAdded.Time, ready.LastTransitionTime.Time)
	timely(t, "the NoExecute taint is there", since.Time, ready.LastTransitionTime.Time)
	if s := condition(tainted, corev1.NodeReady).Status; s != corev1.ConditionUnknown {
		t.Errorf("%s is to be left while Ready is %s", name, s)
	}
	return evicting(tainted)
}

// timely judges a time that must not be before another, nor much later.
func timely(t *testing.T, what string, is, from time.Time) {
	t.Helper()
	if is.Before(from) {
		t.Errorf("%s at %v, which is %v too early", what, is, from.Sub(is))
	}
	if is.After(from.Add(late)) {
		t.Errorf("%s at %v, which is %v late", what, is, is.Sub(from))
	}
}

// shunned tells whether a node has a taint for not being ready or not reachable. A
// machine that is short of something else is not the concern of these tests.
func shunned(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	})
}

// back waits until a node is as if nothing had been.
func back(t *testing.T, h *history, name string) {
	t.Helper()
	h.until(t, name+" is back", func() error {
		n := h.latest(name)
		if condition(n, corev1.NodeReady).Status != corev1.ConditionTrue || shunned(n) {
			return fmt.Errorf("conditions %v, taints %v", n.Status.Conditions, n.Spec.Taints)
		}
		return nil
	})
}

// again waits until a pod that was not ready is ready again, and checks that it is
// the same process that was started once.
func (c *cluster) again(t *testing.T, h *history, p *corev1.Pod, pids []int) {
	t.Helper()
	h.until(t, p.Name+" is ready again", func() error {
		last := h.latestPod(p.UID)
		if podReady(last) != corev1.ConditionTrue {
			return fmt.Errorf("conditions %v", last.Status.Conditions)
		}
		if s := last.Status.ContainerStatuses; len(s) != 1 || s[0].RestartCount != 0 || s[0].ContainerID != p.Status.ContainerStatuses[0].ContainerID {
			t.Fatalf("the container of %s is another: %v", p.Name, s)
		}
		return nil
	})
	if now := processesOfPod(p.UID); fmt.Sprint(now) != fmt.Sprint(pids) {
		t.Errorf("the processes of %s were %v and are %v", p.Name, pids, now)
	}
	if n := c.starts(t, p.UID); n != 1 {
		t.Errorf("%s was started %d times", p.Name, n)
	}
}

// stays checks that nobody has told a pod to go.
func stays(t *testing.T, h *history, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		for _, v := range h.allPods() {
			if v.UID == p.UID && v.DeletionTimestamp != nil {
				t.Errorf("%s was told to go at %v", p.Name, toldToGo(v))
				break
			}
		}
	}
}

// A node that is back before its pods' time is up has lost nothing.
func testHealedInTime(t *testing.T, c *cluster, node *lab.Node) {
	h := c.watch(t)
	c.hold(t, "patient", c.holding(t, "node-1", unreachable(seconds(600))))
	patient := c.held(t, h, "patient", "node-1")
	pids := processesOfPod(patient.UID)
	must(t, node.Cut(t.Context()))
	c.silent(t, h, "node-1")
	h.pod(t, "patient is not ready", func(p *corev1.Pod) bool {
		return p.UID == patient.UID && podReady(p) == corev1.ConditionFalse
	})
	silent := condition(h.node(t, "node-1", "has no tunnel", is(tunnelConnected, corev1.ConditionFalse)), tunnelConnected)
	if !strings.HasSuffix(silent.Reason, "LinkSilent") {
		t.Errorf("the tunnel is not connected because of %s: %s", silent.Reason, silent.Message)
	}
	c.explained(t, "node-1", "link")
	must(t, node.Heal(t.Context()))
	back(t, h, "node-1")
	h.until(t, "logs and exec are known to work", func() error {
		for _, of := range []corev1.NodeConditionType{tunnelConnected, dataPathReady} {
			if c := condition(h.latest("node-1"), of); c.Status != corev1.ConditionTrue {
				return fmt.Errorf("%v", c)
			}
		}
		return nil
	})
	c.explained(t, "node-1", "none")
	c.again(t, h, patient, pids)
	h.until(t, "the eviction is called off", func() error {
		if h.told("TaintManagerEviction", "patient", "Cancelling deletion of Pod default/patient") == 0 {
			return errNotYet
		}
		return nil
	})
	stays(t, h, patient)
	c.answers(t, patient)
	c.mustKubectl(t, "", "delete", "pod", "patient", "--wait=true", "--timeout=120s")
	c.aliveIs(t, patient, 0)
}

// explained waits until hawser explain names a layer as the one that is broken.
func (c *cluster) explained(t *testing.T, node, layer string) {
	t.Helper()
	_, client := bin(t)
	eventually(t, "the broken layer is "+layer, func() error {
		var r struct{ Verdict struct{ Layer string } }
		out, err := exec.CommandContext(t.Context(), filepath.Join(client, "hawser"), "explain", "node", node,
			"--dir", c.dir, "--node-monitor-grace-period", grace.String(), "-o", "json").Output()
		if err == nil {
			err = json.Unmarshal(out, &r)
		}
		if err == nil && r.Verdict.Layer != layer {
			err = errors.New(r.Verdict.Layer)
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
}

// answers waits until exec into a pod answers.
func (c *cluster) answers(t *testing.T, p *corev1.Pod) {
	t.Helper()
	eventually(t, "exec works", func() error {
		out, stderr, code := c.kubectl(t, "", "exec", p.Name, "--", "echo", "here")
		if code != 0 || out != "here\n" {
			return fmt.Errorf("%s%s", out, stderr)
		}
		return nil
	})
}

// A node that stays away loses pods, each in its own time.
func testHealedTooLate(t *testing.T, c *cluster, node *lab.Node) {
	h := c.watch(t)
	c.hold(t, "web", c.holding(t, "node-1"))
	c.held(t, h, "web", "node-1")
	one := int32(1)
	_, err := c.client.AppsV1().ReplicaSets("default").Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: c.holding(t, "")},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	h.pod(t, "web is adopted", func(p *corev1.Pod) bool { return p.Name == "web" && metav1.GetControllerOf(p) != nil })
	c.hold(t, "at-once", c.holding(t, "node-1", unreachable(seconds(0))))
	c.hold(t, "later", c.holding(t, "node-1", unreachable(seconds(6))))
	c.hold(t, "never", c.holding(t, "node-1", unreachable(nil)))
	stay := map[string]time.Duration{"web": tolerated, "at-once": 0, "later": 6 * time.Second}
	pods, pids := map[string]*corev1.Pod{}, map[string][]int{}
	for _, app := range []string{"web", "at-once", "later", "never"} {
		pods[app] = c.held(t, h, app, "node-1")
		pids[app] = processesOfPod(pods[app].UID)
	}

	must(t, node.Cut(t.Context()))
	tainted := c.silent(t, h, "node-1")
	for app, d := range stay {
		going := h.pod(t, app+" is told to go", func(p *corev1.Pod) bool {
			return p.UID == pods[app].UID && p.DeletionTimestamp != nil
		})
		timely(t, app+" is told to go", toldToGo(going), tainted.TimeAdded.Add(d))
		if g := *going.DeletionGracePeriodSeconds; g != holdGrace {
			t.Errorf("%s is given %d s to end, not its own %d", app, g, holdGrace)
		}
	}
	replacement := c.held(t, h, "web", "node-2")
	h.pod(t, "never is not ready", func(p *corev1.Pod) bool {
		return p.UID == pods["never"].UID && podReady(p) == corev1.ConditionFalse
	})
	// Nobody can reach the node, so there everything goes on, and nobody says
	// that it does not.
	for app, p := range pods {
		if now := processesOfPod(p.UID); fmt.Sprint(now) != fmt.Sprint(pids[app]) {
			t.Errorf("with the node cut off the processes of %s were %v and are %v", app, pids[app], now)
		}
		if h.goneAlready(p.UID) != nil {
			t.Errorf("the object of %s was deleted while its process ran", app)
		}
	}
	table := c.mustKubectl(t, "", "get", "pods", "--no-headers")
	for app := range stay {
		if !hasRow(table, pods[app].Name, "Terminating") {
			t.Errorf("%s is not shown as Terminating:\n%s", app, table)
		}
	}
	stays(t, h, pods["never"], replacement)

	must(t, node.Heal(t.Context()))
	back(t, h, "node-1")
	for app := range stay {
		last := h.lost(t, pods[app])
		c.aliveIs(t, last, 0)
		if n := c.starts(t, last.UID); n != 1 {
			t.Errorf("%s was started %d times", app, n)
		}
		if n := h.told("TaintManagerEviction", last.Name, "Marking for deletion Pod default/"+last.Name); n != 1 {
			t.Errorf("the eviction of %s was told %d times", app, n)
		}
		disrupted(t, last, "DeletionByTaintManager")
	}
	c.again(t, h, pods["never"], pids["never"])
	stays(t, h, pods["never"], replacement)
	if n := c.starts(t, replacement.UID); n != 1 {
		t.Errorf("the replacement was started %d times", n)
	}
	c.answers(t, pods["never"])
}

// hasRow tells whether a table of kubectl has a row with these words.
func hasRow(table string, words ...string) bool {
	for line := range strings.Lines(table) {
		has := 0
		for _, f := range strings.Fields(line) {
			if has < len(words) && f == words[has] {
				has++
			}
		}
		if has == len(words) {
			return true
		}
	}
	return false
}

// disrupted checks that a pod says why it was told to go.
func disrupted(t *testing.T, p *corev1.Pod, reason string) {
	t.Helper()
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == reason {
			return
		}
	}
	t.Errorf("%s does not say that it ends because of %s: %v", p.Name, reason, p.Status.Conditions)
}
