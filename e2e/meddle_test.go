// Somebody who may do everything takes away what controllers and nodes have made.

package e2e

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A meddled cluster has a node that lives and one that is dead.
type meddled struct {
	*cluster
	addresses []corev1.NodeAddress // of node-1
}

// TestMeddling: whatever is taken away, in whichever order, is there again: taints, leases,
// pods, addresses, endpoints.
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
	all := []func(*testing.T, *rand.Rand){c.untaint, c.unlease, c.unpod, c.unaddress, c.unslice}
	for range 3 {
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
	pods, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if n := len(pods.Items); n > 0 {
		c.mustKubectl(t, "", "delete", "pod", pods.Items[r.IntN(n)].Name, "--now", "--wait=false", "--ignore-not-found")
	}
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
	return c.serves(t)
}

// serves is why the service does not lead to three pods that run.
func (c *meddled) serves(t *testing.T) error {
	t.Helper()
	pods, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	must(t, err)
	var want, got []string
	for i := range pods.Items {
		if p := &pods.Items[i]; podReady(p) == corev1.ConditionTrue && p.DeletionTimestamp == nil {
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
