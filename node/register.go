// This file makes the node's object in the API.

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	goruntime "runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

const (
	attachDetach  = "volumes.kubernetes.io/controller-managed-attach-detach"
	uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

	registerFirst = 100 * time.Millisecond
	registerLimit = 7 * time.Second
)

// register creates the Node object, or updates an existing one, and reports whether that
// succeeded before ctx was done. It reads the object first, backs off between tries, and
// logs a failure once.
func (n *Node) register(ctx context.Context) bool {
	if n.cfg.NoRegister {
		return true
	}
	last, wait := "", registerFirst
	for failures := 1; ; failures++ {
		node, err := n.tryRegister(ctx)
		if err == nil {
			n.self.set(node)
			n.log.Info("node is registered", "node", n.cfg.Name, "uid", string(node.UID))
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if msg := err.Error(); msg != last {
			n.log.Warn("cannot register the node, will keep trying", "node", n.cfg.Name, "err", err)
			last = msg
		}
		if repeated(failures) {
			n.cfg.CloseConnections()
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
		wait = min(2*wait, registerLimit)
	}
}

func (n *Node) tryRegister(ctx context.Context) (*corev1.Node, error) {
	api := n.cfg.API.Nodes
	within, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	node, err := api.Get(within, n.cfg.Name, metav1.GetOptions{})
	cancel()
	if apierrors.IsNotFound(err) {
		wanted, events := n.initial(ctx)
		if node, err = api.Create(ctx, wanted, metav1.CreateOptions{}); err == nil {
			n.tell(events)
			n.status.reported(time.Now(), n.cfg.StatusReport, true)
			return node, nil
		}
		if apierrors.IsAlreadyExists(err) {
			node, err = api.Get(ctx, n.cfg.Name, metav1.GetOptions{})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register node: %w", err)
	}
	patch, err := n.reconcile(node)
	if err != nil || patch == nil {
		return node, err
	}
	if node, err = api.Patch(ctx, n.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return nil, fmt.Errorf("bring registered node up to date: %w", err)
	}
	return node, nil
}

// initial is the Node object for its creation, with its whole status.
func (n *Node) initial(ctx context.Context) (*corev1.Node, []event) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        n.cfg.Name,
			Labels:      n.defaultLabels(),
			Annotations: map[string]string{attachDetach: "true"},
		},
		Spec: corev1.NodeSpec{
			ProviderID:    n.cfg.ProviderID,
			Unschedulable: n.cfg.Unschedulable,
			Taints:        append([]corev1.Taint(nil), n.cfg.Taints...),
		},
	}
	maps.Copy(node.Labels, n.cfg.Labels)
	n.annotate(node)
	if n.cfg.Unschedulable {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	if n.cfg.ExternalCloud {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: uninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	}
	events := n.report(ctx).set(node)
	return node, events
}

func (n *Node) defaultLabels() map[string]string {
	return map[string]string{
		corev1.LabelHostname:      n.cfg.Hostname,
		corev1.LabelOSStable:      "linux",
		corev1.LabelArchStable:    goruntime.GOARCH,
		"beta.kubernetes.io/os":   "linux",
		"beta.kubernetes.io/arch": goruntime.GOARCH,
	}
}

// annotate sets and removes the annotations that the node owns.
func (n *Node) annotate(node *corev1.Node) {
	for key, value := range n.cfg.Annotations {
		if value == "" {
			delete(node.Annotations, key)
			continue
		}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, key, value)
	}
}

// reconcile returns the patch for an existing object; nil for none. It only sets what the
// node owns: taints, other labels and spec.unschedulable are the administrator's once the
// object exists.
func (n *Node) reconcile(node *corev1.Node) ([]byte, error) {
	wanted := node.DeepCopy()
	if wanted.Labels == nil {
		wanted.Labels = map[string]string{}
	}
	maps.Copy(wanted.Labels, n.defaultLabels())
	if v, ok := n.cfg.Labels[corev1.LabelHostname]; ok {
		wanted.Labels[corev1.LabelHostname] = v
	}
	metav1.SetMetaDataAnnotation(&wanted.ObjectMeta, attachDetach, "true")
	n.annotate(wanted)
	if maps.Equal(wanted.Labels, node.Labels) && maps.Equal(wanted.Annotations, node.Annotations) {
		return nil, nil
	}
	before, err := json.Marshal(node)
	if err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	after, err := json.Marshal(wanted)
	if err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return nil, fmt.Errorf("compare nodes: %w", err)
	}
	return patch, nil
}
