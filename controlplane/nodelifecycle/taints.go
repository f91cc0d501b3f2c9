// Package nodelifecycle keeps the taints of nodes in step with what the nodes
// say about themselves.
//
// A node whose Ready condition is not True, or that is short of something, or
// that somebody has cordoned, carries a NoSchedule taint that says so, and loses
// it when that is over. A new Node is tainted not-ready by admission, so this is
// what lets the first pod onto it. Only the taints in this package's table are
// touched, and only those with effect NoSchedule.
//
// What it is not: it does not find out that a node has gone quiet, and it evicts
// nothing.
package nodelifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// DefaultWorkers is how many nodes are worked on at once if not told otherwise.
const DefaultWorkers = 8

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int          // zero means DefaultWorkers
	Log     *slog.Logger // nil means discard
}

// A Controller is the part of Kubernetes' node-lifecycle-controller that the
// package comment tells.
type Controller struct {
	cfg    Config
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	inf    cache.SharedIndexInformer
	log    *slog.Logger
}

// New returns a controller that watches through f.
func New(client kubernetes.Interface, f informers.SharedInformerFactory, c Config) *Controller {
	if c.Workers <= 0 {
		c.Workers = DefaultWorkers
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	n := f.Core().V1().Nodes()
	ctl := &Controller{cfg: c, client: client, nodes: n.Lister(), inf: n.Informer()}
	ctl.log = c.Log.With("controller", ctl.Name())
	return ctl
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "node-lifecycle-controller" }

// Run keeps taints in step until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: c.cfg.Workers, Log: c.log})
	stop, err := loop.Watch(c.inf, q.Add)
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

func (c *Controller) sync(ctx context.Context, name string) (time.Duration, error) {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if _, changed := taints(node, metav1.Now()); !changed {
		return 0, nil
	}
	// Taints are a list that others write too: change the list as it is, and
	// only if it still is.
	node, err = c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up node %s: %w", name, err)
	}
	want, changed := taints(node, metav1.Now())
	if !changed {
		return 0, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": want},
	})
	if err != nil {
		return 0, fmt.Errorf("encode the taints of node %s: %w", name, err)
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return 0, loop.Quiet(err)
	}
	if err != nil {
		return 0, fmt.Errorf("taint node %s: %w", name, err)
	}
	return 0, nil
}

// byCondition says which taint a condition's status calls for.
var byCondition = map[corev1.NodeConditionType]map[corev1.ConditionStatus]string{
	corev1.NodeReady: {
		corev1.ConditionFalse:   corev1.TaintNodeNotReady,
		corev1.ConditionUnknown: corev1.TaintNodeUnreachable,
	},
	corev1.NodeMemoryPressure:     {corev1.ConditionTrue: corev1.TaintNodeMemoryPressure},
	corev1.NodeDiskPressure:       {corev1.ConditionTrue: corev1.TaintNodeDiskPressure},
	corev1.NodeNetworkUnavailable: {corev1.ConditionTrue: corev1.TaintNodeNetworkUnavailable},
	corev1.NodePIDPressure:        {corev1.ConditionTrue: corev1.TaintNodePIDPressure},
}

// ours are the keys of the taints that belong to this controller.
var ours = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodeNetworkUnavailable, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable,
}

// taints returns what the node's taints should be and whether they are not. A
// node that says nothing about its readiness is as good as not ready.
func taints(node *corev1.Node, now metav1.Time) (want []corev1.Taint, changed bool) {
	keys := wanted(node)
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoSchedule && slices.Contains(ours, t.Key) {
			i := slices.Index(keys, t.Key)
			if i < 0 {
				changed = true
				continue
			}
			keys = slices.Delete(keys, i, i+1)
		}
		want = append(want, t)
	}
	for _, k := range keys {
		changed = true
		want = append(want, corev1.Taint{Key: k, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &now})
	}
	return want, changed
}

func wanted(node *corev1.Node) []string {
	var keys []string
	ready := false
	for _, c := range node.Status.Conditions {
		ready = ready || c.Type == corev1.NodeReady
		if key := byCondition[c.Type][c.Status]; key != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	if !ready {
		keys = append(keys, corev1.TaintNodeNotReady)
	}
	if node.Spec.Unschedulable {
		keys = append(keys, corev1.TaintNodeUnschedulable)
	}
	return keys
}
