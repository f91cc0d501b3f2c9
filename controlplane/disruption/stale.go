package disruption

// Pods that were to be disrupted and are not being deleted: that is taken back.

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// target is the condition that says that p is to be disrupted, if that may be taken back; nil
// if it may not. A kubelet that says so takes its time before it ends the pod.
func target(p *corev1.Pod) *corev1.PodCondition {
	if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
	if i < 0 {
		return nil
	}
	if c := &p.Status.Conditions[i]; c.Status == corev1.ConditionTrue && c.Reason != corev1.PodReasonTerminationByKubelet {
		return c
	}
	return nil
}

// watchTargets calls add with the key of each pod whose condition may have to be taken back.
func (c *Controller) watchTargets(add func(key string)) (stop func(), err error) {
	consider := func(obj any) {
		if p, ok := obj.(*corev1.Pod); ok && target(p) != nil {
			add(p.Namespace + "/" + p.Name)
		}
	}
	return loop.Handle(c.podInf, cache.ResourceEventHandlerFuncs{AddFunc: consider, UpdateFunc: func(_, obj any) { consider(obj) }})
}

// clearTarget takes back that the pod at key is to be disrupted, if it has been so for long.
func (c *Controller) clearTarget(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	p, err := c.pods.Pods(ns).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if target(p) == nil {
		return 0, nil
	}
	p = p.DeepCopy()
	is := target(p)
	if left := time.Until(is.LastTransitionTime.Add(c.cfg.DeletionTimeout)); left > 0 {
		return left, nil
	}
	*is = corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now(), ObservedGeneration: p.Generation,
	}
	_, err = c.client.CoreV1().Pods(ns).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return 0, loop.StatusError("pod "+key, err)
}
