// A node that comes and goes: a nuisance to nobody but itself.

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// flaps are short ones: each is noticed, and none lasts as long as the grace
// period. Whether a heartbeat gets through in between is a matter of luck.
const flaps = `
seed 4
at 0s cuts 8 between 1s..2s kinds blackhole,rst,rebind,move for 3s on node-1
`

// No pod is evicted for a node that keeps coming back, other nodes notice nothing,
// and what is told of it is bounded by what has happened.
func TestFlapping(t *testing.T) {
	c := startQuick(t, "--nodes", "3")
	node, err := c.lab(t).Node("node-1")
	must(t, err)
	h := c.watch(t)
	var pods []*corev1.Pod
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		c.hold(t, "on-"+name, c.holding(t, name, unreachable(seconds(600))))
		pods = append(pods, c.held(t, h, "on-"+name, name))
	}
	pids := processesOfPod(pods[0].UID)

	const short, long = 8, 2
	c.suffer(t, flaps)
	for i := range long {
		// What is of the past must not count again.
		since := c.watch(t)
		cut(t, node)
		since.node(t, "node-1", fmt.Sprintf("is Unknown, time %d", i+1), is(corev1.NodeReady, corev1.ConditionUnknown))
		heal(t, node)
		back(t, since, "node-1")
	}
	c.again(t, h, pods[0], pids)
	stays(t, h, pods...)
	for _, name := range []string{"node-2", "node-3"} {
		for _, v := range h.versions(name) {
			if !is(corev1.NodeReady, corev1.ConditionTrue)(v) || shunned(v) {
				t.Errorf("%s, which was never cut off, is %v, %v", name, v.Status.Conditions, v.Spec.Taints)
				break
			}
		}
	}
	h.until(t, "each time that node-1 stopped being ready is told", func() error {
		if n, want := h.told("NodeNotReady", "node-1", ""), h.unready("node-1"); n != want || want < long {
			return fmt.Errorf("it did %d times, of which %d are told", want, n)
		}
		return nil
	})
	// Parked, resumed, detached, attached; not ready and ready once more.
	if n := h.told("", "node-1", ""); n > 6*(short+long) {
		t.Errorf("%d events of a node that was cut off %d times", n, short+long)
	}
	t.Run("drain", func(t *testing.T) { testDrain(t, c) })
}

// unready counts how often a node has stopped being ready.
func (h *history) unready(name string) int {
	n, ready := 0, false
	for _, v := range h.versions(name) {
		now := condition(v, corev1.NodeReady).Status == corev1.ConditionTrue
		if ready && !now {
			n++
		}
		ready = now
	}
	return n
}

// testDrain drains a node whose link comes and goes: it takes longer, and ends
// well, with no more pods gone at a time than their budget allows.
func testDrain(t *testing.T, c *cluster) {
	const replicas = 3
	labels := map[string]string{"app": "drained"}
	one, n := intstr.FromInt32(1), int32(replicas)
	_, err := c.client.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "drained"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}, metav1.CreateOptions{})
	must(t, err)
	h := c.watch(t)
	var before []*corev1.Pod
	for i := range replicas {
		name := fmt.Sprintf("drained-%d", i)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: c.holding(t, "node-1")}
		_, err := c.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
		must(t, err)
		before = append(before, h.pod(t, name+" runs", func(p *corev1.Pod) bool {
			return p.Name == name && podReady(p) == corev1.ConditionTrue
		}))
	}
	_, err = c.client.AppsV1().ReplicaSets("default").Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "drained"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: c.holding(t, "")},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	for _, p := range before {
		h.pod(t, p.Name+" is adopted", func(v *corev1.Pod) bool { return v.UID == p.UID && metav1.GetControllerOf(v) != nil })
	}

	suffered := make(chan error, 1)
	go func() { suffered <- c.flap(t) }()
	out := c.mustKubectl(t, "", "drain", "node-1", "--force", "--timeout=150s")
	must(t, <-suffered)
	if !strings.Contains(out, "node/node-1 drained") {
		t.Errorf("kubectl drain says %s", out)
	}
	for _, p := range before {
		c.aliveIs(t, h.lost(t, p), 0)
	}
	h.until(t, "others take their place", func() error {
		if ready := readyAt(h.allPods(), labels["app"]); ready != replicas {
			return fmt.Errorf("%d are ready", ready)
		}
		return nil
	})
	// The history holds what the budget was about at every moment.
	all, full := h.allPods(), false
	for i := range all {
		ready := readyAt(all[:i+1], labels["app"])
		if full = full || ready == replicas; full && ready < replicas-1 {
			t.Errorf("only %d of %d were ready, with a budget of one", ready, replicas)
			break
		}
	}
}

// readyAt counts the pods of an app that are ready, and not about to end, after
// what the versions tell.
func readyAt(versions []*corev1.Pod, app string) int {
	latest := map[string]*corev1.Pod{}
	for _, v := range versions {
		if v.Labels["app"] == app {
			latest[string(v.UID)] = v
		}
	}
	n := 0
	for _, v := range latest {
		if podReady(v) == corev1.ConditionTrue && v.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// flap has the program put flaps in place.
func (c *cluster) flap(t *testing.T) error {
	_, client := bin(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(client, "hawser"), "lab", "--dir", c.dir, "-")
	cmd.Stdin = strings.NewReader(flaps)
	told, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("hawser lab: %w\n%s", err, told)
	}
	if faults := strings.Count(string(told), " node-1 ") - strings.Count(string(told), " end of "); faults != 8 {
		return fmt.Errorf("hawser lab told of %d faults:\n%s", faults, told)
	}
	return nil
}
