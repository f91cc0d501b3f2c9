// Somebody who may do everything takes away what controllers and nodes have made.

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A meddled cluster has a node that lives and one that is dead.
type meddled struct {
	*cluster
	addresses []corev1.NodeAddress // of node-1
}

var meddlings = flag.Int("e2e.meddlings", 3, "how many times TestMeddling takes things away and wants them back")

// TestMeddling: whatever is taken away, in whichever order, is there again: taints, leases,
// pods, addresses, endpoints. Without their finalizers a Job still comes to its end, and what
// a deployment owns still goes with it.
func TestMeddling(t *testing.T) {
	t.Parallel()
	args := []string{"--nodes", "2"}
	for _, arg := range slices.Concat(quickLifecycle, quickTunnel, quickServer) {
		args = append(args, "--server-arg="+arg)
	}
	for _, arg := range slices.Concat(quickTunnel, quickAgent) {
		args = append(args, "--agent-arg="+arg)
	}
	c := &meddled{cluster: startUp(t, args...)}
	c.kill(t, "node-2")
	c.mustKubectl(t, "", "create", "deployment", "web", "--image=none", "--replicas=3", "--port=80", "--", "sleep", "1000")
	c.mustKubectl(t, "", "expose", "deployment", "web")
	c.addresses = c.node(t, "node-1").Status.Addresses
	eventually(t, "all is well", func() error { return c.well(t) })
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	all := []func(*testing.T, *rand.Rand){c.untaint, c.unlease, c.unpod, c.unaddress, c.unslice, c.unfinalize}
	for range *meddlings {
		c.finalizing(t)
		for range 1 + r.IntN(10) {
			all[r.IntN(len(all))](t, r)
		}
		eventually(t, fmt.Sprintf("seed %d: all is well again", seed), func() error { return c.well(t) })
	}
}

func (c *meddled) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return n
}

func (c *meddled) untaint(t *testing.T, r *rand.Rand) {
	_, err := c.client.CoreV1().Nodes().Patch(t.Context(), fmt.Sprint("node-", 1+r.IntN(2)), types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
	must(t, err)
}

func (c *meddled) unlease(t *testing.T, _ *rand.Rand) {
	must(t, c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
}

func (c *meddled) unpod(t *testing.T, r *rand.Rand) {
	if pods := c.podsOf(t, "app=web"); len(pods) > 0 {
		c.mustKubectl(t, "", "delete", "pod", pods[r.IntN(len(pods))].Name, "--now", "--wait=false", "--ignore-not-found")
	}
}

// finalizing makes what has finalizers: a Job with pods, and a deployment that waits for what
// it owns. What is left of the Job before goes.
func (c *meddled) finalizing(t *testing.T) {
	c.mustKubectl(t, "", "delete", "jobs", "--all")
	pod := func(restart, command string) string { // on the node that lives
		return fmt.Sprintf(`"spec": {"nodeName": "node-1", "restartPolicy": %q, "containers": [{"name": "c", "image": "none", "command": ["sh", "-c", %q]}]}`, restart, command)
	}
	c.mustKubectl(t, `{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "work-"},
		"spec": {"completions": 3, "parallelism": 2, "template": {`+pod("Never", "sleep 0.5")+`}}}`, "create", "-f", "-")
	c.mustKubectl(t, `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "leaving", "labels": {"app": "leaving"}},
		"spec": {"selector": {"matchLabels": {"app": "leaving"}}, "template": {"metadata": {"labels": {"app": "leaving"}}, `+
		pod("Always", "trap 'exit 0' TERM; while :; do sleep 0.1; done")+`}}}`, "create", "-f", "-")
	eventually(t, "the deployment owns something", func() error {
		if pods := c.podsOf(t, "app=leaving"); len(pods) == 0 {
			return errNotYet
		}
		return nil
	})
	c.mustKubectl(t, "", "delete", "deployment", "leaving", "--cascade=foreground", "--wait=false")
}

func (c *meddled) podsOf(t *testing.T, selector string) []corev1.Pod {
	t.Helper()
	pods, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	must(t, err)
	return pods.Items
}

// unfinalize takes the finalizers of some pods, ReplicaSets and deployments.
func (c *meddled) unfinalize(t *testing.T, r *rand.Rand) {
	for name := range strings.FieldsSeq(c.mustKubectl(t, "", "get", "pods,replicasets,deployments", "-o",
		`jsonpath={range .items[?(@.metadata.finalizers)]}{.kind}/{.metadata.name}{"\n"}{end}`)) {
		if r.IntN(2) == 0 {
			continue
		}
		if _, said, code := c.kubectl(t, "", "patch", name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`); code != 0 && !strings.Contains(said, "not found") {
			t.Errorf("%s: %s", name, said)
		}
	}
}

// ends is why the Job has not come to its end, or something is left of what has.
func (c *meddled) ends(t *testing.T) error {
	t.Helper()
	jobs, err := c.client.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range jobs.Items {
		if s := &jobs.Items[i].Status; len(jobs.Items) > 1 || s.CompletionTime == nil || s.Succeeded != 3 || s.Active != 0 {
			return fmt.Errorf("%d jobs, %s: %+v", len(jobs.Items), jobs.Items[i].Name, s)
		}
	}
	for _, p := range c.podsOf(t, batchv1.JobNameLabel) {
		if len(jobs.Items) == 0 || p.Labels[batchv1.JobNameLabel] != jobs.Items[0].Name || len(p.Finalizers) > 0 {
			return fmt.Errorf("pod %s with finalizers %v is left", p.Name, p.Finalizers)
		}
	}
	if left := c.mustKubectl(t, "", "get", "deployments,replicasets,pods", "-l", "app=leaving", "-o", "name"); left != "" {
		return fmt.Errorf("left: %s", left)
	}
	return nil
}

func (c *meddled) unaddress(t *testing.T, _ *rand.Rand) {
	_, err := c.client.CoreV1().Nodes().Patch(t.Context(), "node-1", types.MergePatchType, []byte(`{"status":{"addresses":null}}`), metav1.PatchOptions{}, "status")
	must(t, err)
}

func (c *meddled) unslice(t *testing.T, _ *rand.Rand) {
	must(t, c.client.DiscoveryV1().EndpointSlices("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// well is why not all is as it has to be.
func (c *meddled) well(t *testing.T) error {
	t.Helper()
	live, dead := c.node(t, "node-1"), c.node(t, "node-2")
	if is := condition(live, corev1.NodeReady); is.Status != corev1.ConditionTrue || len(live.Spec.Taints) > 0 || !reflect.DeepEqual(live.Status.Addresses, c.addresses) {
		return fmt.Errorf("node-1: %+v, %v, %v", is, live.Spec.Taints, live.Status.Addresses)
	}
	var taints []string
	for i := range dead.Spec.Taints {
		taints = append(taints, dead.Spec.Taints[i].ToString())
	}
	slices.Sort(taints)
	if want := []string{"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"}; !slices.Equal(taints, want) {
		return fmt.Errorf("node-2: %v", taints)
	}
	if _, err := c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "node-1", metav1.GetOptions{}); err != nil {
		return err
	}
	return errors.Join(c.serves(t), c.ends(t))
}

// serves is why the service does not lead to three pods that run.
func (c *meddled) serves(t *testing.T) error {
	t.Helper()
	pods := c.podsOf(t, "app=web")
	var want, got []string
	for i := range pods {
		if p := &pods[i]; podReady(p) == corev1.ConditionTrue && p.DeletionTimestamp == nil {
			want = append(want, p.Name)
		}
	}
	ends, err := c.client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
	must(t, err)
	for i := range ends.Items {
		for _, e := range ends.Items[i].Endpoints {
			if e.TargetRef != nil && e.Conditions.Ready != nil && *e.Conditions.Ready {
				got = append(got, e.TargetRef.Name)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	kubernetes, err := c.client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	must(t, err)
	if len(want) != 3 || !slices.Equal(got, want) || len(kubernetes.Items) != 1 {
		return fmt.Errorf("pods %v, endpoints %v, %d slices of the API server", want, got, len(kubernetes.Items))
	}
	return nil
}
