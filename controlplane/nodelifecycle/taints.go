package nodelifecycle

// Which taints a node should have, and how they are written.

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

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

// ours are the keys of the NoSchedule taints that belong to this controller.
var ours = []string{
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
	corev1.TaintNodeNetworkUnavailable, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable,
}

// evicting are the keys of the NoExecute taints that belong to it.
var evicting = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}

// An edit returns what a node's taints should be, and whether they are not.
type edit func(node *corev1.Node, now metav1.Time) (want []corev1.Taint, changed bool)

// noSchedule is the edit that makes the NoSchedule taints what the node's
// conditions call for. A node that says nothing about its readiness is as good
// as not ready.
func noSchedule(node *corev1.Node, now metav1.Time) ([]corev1.Taint, bool) {
	return replace(node, corev1.TaintEffectNoSchedule, ours, wanted(node), now)
}

func wanted(node *corev1.Node) []string {
	var keys []string
	ready := false
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
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

// withoutNoExecute is the edit that takes away the NoExecute taints of conditions.
func withoutNoExecute(node *corev1.Node, now metav1.Time) ([]corev1.Taint, bool) {
	return replace(node, corev1.TaintEffectNoExecute, evicting, nil, now)
}

// replace returns the node's taints with those of one effect, as far as their
// keys are among owned, replaced by keys. Taints that are there stay as they are,
// with the time they were added; all others are not touched.
func replace(node *corev1.Node, effect corev1.TaintEffect, owned, keys []string, now metav1.Time) (want []corev1.Taint, changed bool) {
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if t.Effect == effect && slices.Contains(owned, t.Key) {
			i := slices.Index(keys, t.Key)
			if i < 0 {
				changed = true
				continue
			}
			keys = slices.Delete(slices.Clone(keys), i, i+1)
		}
		want = append(want, *t)
	}
	for _, k := range keys {
		changed = true
		want = append(want, corev1.Taint{Key: k, Effect: effect, TimeAdded: &now})
	}
	return want, changed
}

// evicts tells whether the node has the NoExecute taint of a key.
func evicts(node *corev1.Node, key string) bool {
	for i := range node.Spec.Taints {
		if t := &node.Spec.Taints[i]; t.Key == key && t.Effect == corev1.TaintEffectNoExecute {
			return true
		}
	}
	return false
}

// editTaints makes a node's taints what do says and tells whether that changed
// them; it asks nobody if nothing has to change. Taints are a list that others
// write too, so they are written only if the node still is what do was shown:
// first node, which is the cache's, then what the server has. The labels that the node
// lacks under their old names are written with them: a new node needs both.
func (c *Controller) editTaints(ctx context.Context, node *corev1.Node, do edit) (bool, error) {
	want, changed := do(node, metav1.Now())
	if !changed {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for try := 1; ; try++ {
		err := c.writeTaints(ctx, node, want)
		switch {
		case err == nil:
			return true, nil
		case apierrors.IsNotFound(err):
			return false, nil
		case !apierrors.IsConflict(err) || try == taintTries:
			return false, fmt.Errorf("taint node %s: %w", node.Name, err)
		}
		if !pause(ctx, taintPause+rand.N(taintPause)) {
			return false, fmt.Errorf("taint node %s: %w", node.Name, err)
		}
		fresh, err := c.client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look up node %s: %w", node.Name, err)
		}
		node = fresh
		if want, changed = do(node, metav1.Now()); !changed {
			return false, nil
		}
	}
}

func (c *Controller) writeTaints(ctx context.Context, node *corev1.Node, want []corev1.Taint) error {
	meta := map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}
	if labels := oldNames(node.Labels); len(labels) > 0 {
		meta["labels"] = labels
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta, "spec": map[string]any{"taints": want}})
	if err != nil {
		return fmt.Errorf("encode taints: %w", err)
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}
