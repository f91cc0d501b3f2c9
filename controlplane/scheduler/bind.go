package scheduler

// Bind: tells the API server what has been decided.

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

// bindAll writes decisions until ctx is done.
func (r *run) bindAll(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case b := <-r.binds:
			r.write(ctx, b)
		}
	}
}

// write writes one decision, and takes it back if that panics.
func (r *run) write(ctx context.Context, b binding) {
	name := types.NamespacedName{Namespace: b.pod.pod.Namespace, Name: b.pod.pod.Name}
	err := loop.Protect(func() error {
		if b.node == "" {
			r.unschedulable(ctx, b)
		} else {
			r.bind(ctx, b)
		}
		return nil
	})
	if loop.Broken(r.log, "pod "+name.String(), err) {
		r.cache.forget(keyOf(b.pod.pod))
		r.queue.failed(b.turn, 0)
	}
}

// bind writes one binding and takes the decision back if it was refused.
func (r *run) bind(ctx context.Context, b binding) {
	pod := b.pod.pod
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	err := r.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: b.node},
	}, metav1.CreateOptions{})
	if err != nil {
		err = r.settle(ctx, b, err)
	}
	switch {
	case err == nil:
		r.event(pod, corev1.EventTypeNormal, "Scheduled",
			fmt.Sprintf("Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, b.node))
		r.queue.done(b.turn)
	case ctx.Err() != nil:
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// Gone, made anew, or bound by somebody else: the watch will tell which.
		r.log.Debug("pod was not bound", "pod", name, "node", b.node, "why", err)
		r.cache.forget(keyOf(pod))
		r.queue.failed(b.turn, 0)
		r.queue.changed(byRoom | byPods) // the room it had taken is free again
	default:
		r.log.Warn("bind pod; will retry", "pod", name, "node", b.node, "error", err)
		r.cache.forget(keyOf(pod))
		r.event(pod, corev1.EventTypeWarning, "FailedScheduling", fmt.Sprintf("binding rejected: %v", err))
		r.queue.failed(b.turn, 0)
		r.queue.changed(byRoom | byPods) // the room it had taken is free again
	}
}

// settle finds out whether a binding that failed was made all the same, as it
// may be if the answer was lost. It returns nil if it was.
func (r *run) settle(ctx context.Context, b binding, failure error) error {
	if !apierrors.IsTimeout(failure) && !apierrors.IsServerTimeout(failure) && apierrors.ReasonForError(failure) != metav1.StatusReasonUnknown {
		return failure
	}
	pod, err := r.client.CoreV1().Pods(b.pod.pod.Namespace).Get(ctx, b.pod.pod.Name, metav1.GetOptions{})
	if err == nil && pod.UID == b.pod.pod.UID && pod.Spec.NodeName == b.node {
		return nil
	}
	return failure
}

// unschedulable says that a pod fits nowhere, and makes room for it if that was decided.
func (r *run) unschedulable(ctx context.Context, b binding) {
	pod := b.pod.pod
	r.event(pod, corev1.EventTypeWarning, "FailedScheduling", b.why)
	if err := r.condition(ctx, pod, b.why); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
		r.log.Warn("update a pod's condition; will try again at the next look",
			"pod", types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, "error", err)
	}
	if b.evicts != nil {
		r.evict(ctx, b)
	}
}

// condition sets the pod's PodScheduled condition and its nominated node if that changes
// anything.
func (r *run) condition(ctx context.Context, pod *corev1.Pod, why string) error {
	if now, err := r.pods.Pods(pod.Namespace).Get(pod.Name); err == nil && now.UID == pod.UID {
		pod = now
	}
	status := map[string]any{}
	if c, changed := withCondition(pod, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable, Message: why,
	}); changed {
		status["conditions"] = []corev1.PodCondition{c}
	}
	switch node := r.cache.nominationOf(keyOf(pod)); node {
	case pod.Status.NominatedNodeName:
	case "":
		status["nominatedNodeName"] = nil
	default:
		status["nominatedNodeName"] = node
	}
	return r.patch(ctx, pod, status)
}

// withCondition returns c as it is to be written to pod, and whether that changes anything
// but times.
func withCondition(pod *corev1.Pod, c corev1.PodCondition) (corev1.PodCondition, bool) {
	c.LastTransitionTime = metav1.NewTime(time.Now())
	c.ObservedGeneration = pod.Generation
	for _, have := range pod.Status.Conditions {
		if have.Type != c.Type {
			continue
		}
		if have.Status == c.Status && have.Reason == c.Reason && have.Message == c.Message {
			return c, false
		}
		if have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
	}
	return c, true
}

// patch writes what is to change of a pod's status, if anything is, to this incarnation of
// the pod only.
func (r *run) patch(ctx context.Context, pod *corev1.Pod, status map[string]any) error {
	if len(status) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode the status of pod %s: %w", pod.Name, err)
	}
	_, err = r.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return err
}

func (r *run) event(pod *corev1.Pod, kind, reason, message string) {
	if r.events != nil {
		r.events.Event(pod, kind, reason, message)
	}
}
