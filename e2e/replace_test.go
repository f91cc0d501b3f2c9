// What takes the place of pods that a lost node still has, and what nobody
// replaces.

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// longGrace is how many seconds the pods have to end that are lost with their node:
// longer than any test takes.
const longGrace = 3600

// toil is what a pod of a Job does: it runs until it is told that the work is done,
// and has failed if it is stopped before.
const toil = `trap 'exit 3' TERM; until [ -e /diary/done ]; do sleep 0.2 & wait "$!"; done`

// daemonTolerations are those that a DaemonSet gives its pods.
func daemonTolerations() []corev1.Toleration {
	var all []corev1.Toleration
	for key, effect := range map[string]corev1.TaintEffect{
		corev1.TaintNodeNotReady:       corev1.TaintEffectNoExecute,
		corev1.TaintNodeUnreachable:    corev1.TaintEffectNoExecute,
		corev1.TaintNodeDiskPressure:   corev1.TaintEffectNoSchedule,
		corev1.TaintNodeMemoryPressure: corev1.TaintEffectNoSchedule,
		corev1.TaintNodePIDPressure:    corev1.TaintEffectNoSchedule,
		corev1.TaintNodeUnschedulable:  corev1.TaintEffectNoSchedule,
	} {
		all = append(all, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect})
	}
	return all
}

// Pods of a lost node end only when the node says so, but their work goes on
// elsewhere before that; a pod that belongs to its node stays with it.
func TestReplacement(t *testing.T) {
	c := startQuick(t, "--nodes", "2")
	node, err := c.lab(t).Node("node-1")
	must(t, err)
	h := c.watch(t)
	c.mustKubectl(t, "", "cordon", "node-2") // so that all begin on the other
	c.replicate(t, "web")
	c.toil(t, "work")
	c.hold(t, "daemon", c.holding(t, "node-1", daemonTolerations()...))
	web, daemon := c.held(t, h, "web", "node-1"), c.held(t, h, "daemon", "node-1")
	work := h.ofApp(t, "work", "node-1")
	webs, daemons := processesOfPod(web.UID), processesOfPod(daemon.UID)
	c.mustKubectl(t, "", "uncordon", "node-2")

	cut(t, node)
	tainted := c.silent(t, h, "node-1")
	for _, lost := range []*corev1.Pod{web, work} {
		going := h.pod(t, lost.Name+" is told to go", func(p *corev1.Pod) bool { return p.UID == lost.UID && p.DeletionTimestamp != nil })
		timely(t, lost.Name+" is told to go", toldToGo(going), tainted.TimeAdded.Add(tolerated))
		if g := *going.DeletionGracePeriodSeconds; g != longGrace {
			t.Errorf("%s is given %d s to end, not its own %d", lost.Name, g, longGrace)
		}
	}
	newWeb, newWork := c.held(t, h, "web", "node-2"), h.ofApp(t, "work", "node-2")
	for _, lost := range []*corev1.Pod{web, work} {
		if h.goneAlready(lost.UID) != nil {
			t.Errorf("the object of %s was deleted while its process ran", lost.Name)
		}
	}
	if now := processesOfPod(web.UID); fmt.Sprint(now) != fmt.Sprint(webs) {
		t.Errorf("with the node cut off the processes of web were %v and are %v", webs, now)
	}
	// To a Job that need not wait for it a pod that was told to go has failed.
	eventually(t, "the Job tells of both its pods", func() error {
		job, err := c.client.BatchV1().Jobs("default").Get(t.Context(), "work", metav1.GetOptions{})
		if err == nil && (job.Status.Active != 1 || job.Status.Terminating == nil || *job.Status.Terminating != 1 || job.Status.Failed != 1) {
			err = fmt.Errorf("status %+v", job.Status)
		}
		return err
	})
	stays(t, h, daemon, newWeb, newWork)

	heal(t, node)
	back(t, h, "node-1")
	for _, lost := range []*corev1.Pod{web, work} {
		disrupted(t, h.lost(t, lost), "DeletionByTaintManager")
	}
	c.aliveIs(t, web, 0)
	c.again(t, h, daemon, daemons)
	c.finish(t, "work")
	stays(t, h, daemon, newWeb, newWork)
	for _, app := range []string{"web", "work"} {
		if n := h.incarnations(app); n != 2 {
			t.Errorf("there were %d pods of %s, want the lost one and one in its place", n, app)
		}
	}
}

// replicate has a ReplicaSet keep one pod that takes long to end.
func (c *cluster) replicate(t *testing.T, name string) {
	t.Helper()
	one, labels, spec := int32(1), map[string]string{"app": name}, c.holding(t, "")
	spec.TerminationGracePeriodSeconds = seconds(longGrace)
	_, err := c.client.AppsV1().ReplicaSets("default").Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

// toil has a Job run one pod that takes long to end.
func (c *cluster) toil(t *testing.T, name string) {
	t.Helper()
	spec := c.holding(t, "")
	spec.TerminationGracePeriodSeconds, spec.RestartPolicy = seconds(longGrace), corev1.RestartPolicyNever
	spec.Containers[0].Command[2] = toil
	_, err := c.client.BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}}, Spec: spec},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

// finish lets the pod of a Job end well, and waits until it is complete, with the one
// that was lost before.
func (c *cluster) finish(t *testing.T, name string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(c.diary(), "done"), nil, 0o600))
	eventually(t, "the Job is complete", func() error {
		job, err := c.client.BatchV1().Jobs("default").Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && (job.Status.CompletionTime == nil || job.Status.Succeeded != 1 || job.Status.Failed != 1) {
			err = fmt.Errorf("status %+v", job.Status)
		}
		return err
	})
}

// ofApp waits until a pod of an app runs on a node, and returns it.
func (h *history) ofApp(t *testing.T, app, node string) *corev1.Pod {
	t.Helper()
	return h.pod(t, app+" runs on "+node, func(p *corev1.Pod) bool {
		return p.Labels["app"] == app && p.Spec.NodeName == node && podReady(p) == corev1.ConditionTrue && p.DeletionTimestamp == nil
	})
}

// incarnations counts the pods that an app has had.
func (h *history) incarnations(app string) int {
	seen := map[types.UID]bool{}
	for _, p := range h.allPods() {
		if p.Labels["app"] == app {
			seen[p.UID] = true
		}
	}
	return len(seen)
}
