package nodelifecycle

// What follows each event of a node: its NoSchedule taints and its labels.

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// reconcile brings one node's NoSchedule taints and labels into step.
func (r *run) reconcile(ctx context.Context, name string) (time.Duration, error) {
	node, err := r.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if changed, err := r.editTaints(ctx, node, noSchedule); changed || err != nil {
		return 0, r.expected(ctx, err) // the labels were written with the taints
	}
	return 0, r.expected(ctx, r.writeLabels(ctx, node, oldNames(node.Labels)))
}

// expected notes the outcome of a request and makes a lost race quiet: whoever
// won it causes another look.
func (r *run) expected(ctx context.Context, err error) error {
	if apierrors.IsConflict(err) {
		return loop.Quiet(err)
	}
	return r.reach.note(ctx, err)
}

// renamed are labels that are kept under their old names, too.
var renamed = []struct{ label, old string }{
	{corev1.LabelOSStable, "beta.kubernetes.io/os"},
	{corev1.LabelArchStable, "beta.kubernetes.io/arch"},
}

// oldNames returns the labels that a node lacks, or has with another value,
// under their old names.
func oldNames(labels map[string]string) map[string]string {
	var want map[string]string
	for _, n := range renamed {
		value, there := labels[n.label]
		if old, is := labels[n.old]; !there || (is && old == value) {
			continue
		}
		if want == nil {
			want = map[string]string{}
		}
		want[n.old] = value
	}
	return want
}

func (r *run) writeLabels(ctx context.Context, node *corev1.Node, want map[string]string) error {
	if len(want) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID, "labels": want}})
	if err != nil {
		return fmt.Errorf("encode labels: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("label node %s: %w", node.Name, err)
	}
	return nil
}
