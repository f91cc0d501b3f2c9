package podgc

// How a pod is removed: marked as failed if it has not ended, then deleted by
// force.

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Texts that users see; they are Kubernetes' own.
const (
	reasonCondition = "DeletionByPodGC"
	messageOrphaned = "PodGC: node no longer exists"
)

// exists asks the API server itself for a node.
func (r *run) exists(ctx context.Context, node string) (bool, error) {
	_, err := r.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up node %s: %w", node, err)
	}
	return true, nil
}

// removeAll removes the pods, several at once and each once. If the API server
// cannot be reached it leaves the rest to the next pass. Its error is a panic.
func (r *run) removeAll(ctx context.Context, all []removal) error {
	todo := make(chan removal)
	var f failures
	fs := []func(context.Context) error{func(ctx context.Context) error {
		defer close(todo)
		seen := make(map[*corev1.Pod]bool, len(all))
		for _, d := range all {
			if seen[d.pod] {
				continue
			}
			seen[d.pod] = true
			select {
			case <-ctx.Done():
				return nil
			case todo <- d:
			}
		}
		return nil
	}}
	for range min(r.cfg.Workers, len(all)) {
		fs = append(fs, func(ctx context.Context) error {
			for d := range todo {
				if !f.unreachable() {
					f.add(r.remove(ctx, d))
				}
			}
			return nil
		})
	}
	if len(all) == 0 {
		return nil
	}
	err := loop.Together(ctx, fs...)
	if f.first != nil {
		r.complain(ctx, "some pods could not be removed", f.first, "pods", f.count)
	}
	return err
}

// remove removes one pod. One that only waits for its finalizers is left to them.
func (r *run) remove(ctx context.Context, d removal) error {
	p := d.pod
	patch, err := failed(d, metav1.Now())
	if err != nil {
		return fmt.Errorf("encode the status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	forced := p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
	if patch == nil && forced || ctx.Err() != nil {
		return nil
	}
	pods := r.client.CoreV1().Pods(p.Namespace)
	if patch != nil {
		_, err = pods.Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err == nil && !forced {
		now := int64(0)
		err = pods.Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
		})
	}
	err = r.outage.Note(err)
	switch {
	case apierrors.IsNotFound(err):
		return nil // somebody was faster
	case apierrors.IsConflict(err):
		// Not this pod any more, or it changed: the next pass sees what it is now.
		r.log.Debug("pod has changed", "pod", p.Namespace+"/"+p.Name, "error", err)
		return nil
	}
	r.metrics.removed(p.Namespace, d.why, err)
	if err != nil {
		return fmt.Errorf("remove pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	r.log.Info("pod removed", "pod", p.Namespace+"/"+p.Name, "why", string(d.why), "node", p.Spec.NodeName)
	return nil
}

// failed returns the patch of the status of a pod that will not be heard of
// again, nil if it has ended and says so.
func failed(d removal, now metav1.Time) ([]byte, error) {
	if ended(d.pod) {
		return nil, nil
	}
	status := map[string]any{"phase": corev1.PodFailed}
	if d.why == reasonOrphaned {
		status["conditions"] = []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: d.pod.Generation,
			Reason: reasonCondition, Message: messageOrphaned, LastTransitionTime: now,
		}}
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": d.pod.UID}, // not another pod of this name
		"status":   status,
	})
}

// failures counts errors and keeps the first. Its methods may be called from any
// goroutine; its fields are read when all of them are done.
type failures struct {
	mu    sync.Mutex
	first error
	count int
	down  bool // one of them was that the API server could not be reached
}

func (f *failures) add(err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	f.down = f.down || loop.Unreachable(err)
	if f.first == nil {
		f.first = err
	}
}

func (f *failures) unreachable() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.down
}

// complain logs an error that a later pass gets over, loudly if it is news. That
// the controller was asked to stop is none.
func (r *run) complain(ctx context.Context, text string, err error, attrs ...any) {
	if ctx.Err() != nil {
		return
	}
	level := slog.LevelWarn
	if loop.IsQuiet(err) {
		level = slog.LevelDebug
	}
	r.log.Log(ctx, level, text+"; will try again", append(attrs, "error", err, "in", r.cfg.Period)...)
}
