package controlplane

// What the controllers of nodes and their pods do to a real API server, with the
// rights that they have there: ranges, evictions, and the end of a node's pods.

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/nodeipam"
	"github.com/hawser-project/hawser/controlplane/podgc"
	"github.com/hawser-project/hawser/controlplane/serviceaccount"
	"github.com/hawser-project/hawser/controlplane/tainteviction"
)

// nodeControllers runs these three, and the one that pods need, beside no others.
func (c *cluster) nodeControllers() {
	c.t.Helper()
	c.resign()
	client := c.client(c.as(c.keys, pki.ControllerManager))
	f := newInformers(client)
	d := loop.Deps{Client: client, Informers: f}
	evict, err := tainteviction.New(d, tainteviction.Config{})
	if err != nil {
		c.t.Fatal(err)
	}
	collect, err := podgc.New(d, podgc.Config{Period: 100 * time.Millisecond, Quarantine: time.Second})
	if err != nil {
		c.t.Fatal(err)
	}
	ipam, err := nodeipam.New(d, nodeipam.Config{Allocate: true, ClusterCIDR: "10.244.0.0/16,fd00:10::/56", ServiceCIDR: "10.96.0.0/12"})
	if err != nil {
		c.t.Fatal(err)
	}
	accounts, err := serviceaccount.New(d, serviceaccount.Config{})
	if err != nil {
		c.t.Fatal(err)
	}
	f.Start(c.t.Context().Done())
	c.t.Cleanup(f.Shutdown)
	f.WaitForCacheSync(c.t.Context().Done())
	started := make(chan struct{})
	close(started)
	for _, ctl := range []Controller{evict, collect, ipam, accounts} {
		c.begin(ctl.Name(), ctl.Run, started)
	}
}

// seconds returns a toleration of the taint of TestNodeControllers.
func seconds(n int64) []corev1.Toleration {
	return []corev1.Toleration{{Key: "e", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &n}}
}

func follow(t *testing.T, w watch.Interface, err error) watch.Interface {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

func TestNodeControllers(t *testing.T) {
	c := startCluster(t)
	c.nodeControllers()
	ctx, nodes := t.Context(), c.admin.CoreV1().Nodes()
	w, err := nodes.Watch(ctx, metav1.ListOptions{})
	ofNodes := follow(t, w, err)
	// The server keeps track of who writes an object from the first field on.
	_, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelHostname: "n"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := until(t, ofNodes, func(n *corev1.Node) bool { return len(n.Spec.PodCIDRs) > 0 })
	if got := strings.Join(n.Spec.PodCIDRs, " "); got != "10.244.0.0/24 fd00:10::/64" || n.Spec.PodCIDR != "10.244.0.0/24" {
		t.Errorf("it was given %s (%s)", got, n.Spec.PodCIDR)
	}
	_, err = nodes.Patch(ctx, "n", types.MergePatchType, []byte(`{"spec":{"podCIDR":"10.244.9.0/24","podCIDRs":["10.244.9.0/24"]}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("another range for it: %v", err)
	}

	pods := c.admin.CoreV1().Pods("default")
	w, err = pods.Watch(ctx, metav1.ListOptions{})
	ofPods := follow(t, w, err)
	for name, ts := range map[string][]corev1.Toleration{"at-once": nil, "soon": seconds(1), "later": seconds(3600)} {
		place(t, c.admin, name, ts)
	}
	w, err = nodes.Watch(ctx, metav1.ListOptions{})
	ofNodes = follow(t, w, err)
	_, err = nodes.Patch(ctx, "n", types.MergePatchType, []byte(`{"spec":{"taints":[{"key":"e","value":"v","effect":"NoExecute"}]}}`), metav1.PatchOptions{FieldManager: "kubectl-taint"})
	if err != nil {
		t.Fatal(err)
	}
	// A taint without a time counts from when the server says it was written.
	n = until(t, ofNodes, func(n *corev1.Node) bool { return len(n.Spec.Taints) == 1 && n.Spec.Taints[0].Key == "e" })
	if !written(n, "kubectl-taint", "f:taints") {
		t.Errorf("who wrote the taints, and when, is not in %+v", n.ManagedFields)
	}
	going := map[string]*corev1.Pod{}
	until(t, ofPods, func(p *corev1.Pod) bool {
		if p.DeletionTimestamp != nil {
			going[p.Name] = p
		}
		return len(going) == 2
	})
	for _, name := range []string{"at-once", "soon"} {
		p := going[name]
		if p == nil || *p.DeletionGracePeriodSeconds != 30 || !disrupted(p, "DeletionByTaintManager") {
			t.Errorf("%s is %+v", name, p)
		}
	}

	// The node goes, and its pods with it: by force, for nobody else will.
	w, err = pods.Watch(ctx, metav1.ListOptions{})
	ofPods = follow(t, w, err)
	if err := nodes.Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted := watch.Filter(ofPods, func(e watch.Event) (watch.Event, bool) { return e, e.Type == watch.Deleted })
	last := map[string]*corev1.Pod{}
	until(t, deleted, func(p *corev1.Pod) bool {
		last[p.Name] = p
		return len(last) == 3
	})
	if p := last["later"]; p == nil || p.Status.Phase != corev1.PodFailed || !disrupted(p, "DeletionByPodGC") {
		t.Errorf("the last of it is %+v", p)
	}
	place(t, c.admin, "later", nil) // its name is free again
}

// place makes a pod on node n.
func place(t *testing.T, k kubernetes.Interface, name string, ts []corev1.Toleration) {
	t.Helper()
	_, err := k.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: "n", Tolerations: ts, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func written(n *corev1.Node, by, field string) bool {
	for _, e := range n.ManagedFields {
		if e.Manager == by && !e.Time.IsZero() && strings.Contains(e.FieldsV1.GetRawString(), field) {
			return true
		}
	}
	return false
}

func disrupted(p *corev1.Pod, reason string) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue && c.Reason == reason
		}
	}
	return false
}
