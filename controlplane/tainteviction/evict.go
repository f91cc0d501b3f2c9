package tainteviction

// What becomes of each pod: it stays, waits for its time, or is deleted.

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Texts that users see; they are Kubernetes' own.
const (
	reasonEvent     = "TaintManagerEviction"
	reasonCondition = "DeletionByTaintManager"
	message         = "Taint manager: deleting due to NoExecute taint"
)

// An eviction is a pod that has to go, now or later. It belongs to the worker
// that has the pod's key.
type eviction struct {
	pod       types.NamespacedName
	uid       types.UID
	epoch     uint64    // of the node when the time began to count
	bound     time.Time // since when the pod has been on the node
	due       time.Time
	announced bool // the event has been sent
	done      bool // deleted; the cache does not show it yet
}

// sync looks at the pod at key.
func (r *run) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, err
	}
	pod, err := r.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		pod, err = nil, nil
	}
	if err != nil {
		return 0, err
	}
	now := time.Now()
	e, off := r.plan(key, pod, now)
	if off != nil {
		r.event(off, "Cancelling deletion of Pod "+off.pod.String())
	}
	switch {
	case e == nil || e.done:
		return 0, nil
	case now.Before(e.due):
		return e.due.Sub(now), nil
	}
	return 0, r.outage.Note(r.evict(ctx, e))
}

// plan returns the eviction of the pod at key, nil if there is none, and the one
// that is called off with this look. pod is nil if it is gone.
func (r *run) plan(key string, pod *corev1.Pod, now time.Time) (e, off *eviction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e = r.evictions[key]
	drop := func() {
		if e != nil && !e.done {
			off = e
		}
		e = nil
		delete(r.evictions, key)
	}
	if pod == nil || e != nil && e.uid != pod.UID {
		drop()
	}
	if pod == nil || pod.Spec.NodeName == "" {
		return nil, off
	}
	if pod.DeletionTimestamp != nil {
		delete(r.evictions, key) // whoever deletes it, it is done
		return nil, off
	}
	n, known := r.nodes[pod.Spec.NodeName]
	if !known || e != nil && e.done {
		return e, off
	}
	if e != nil && e.epoch != n.epoch {
		drop() // the taints it was about have gone meanwhile
	}
	bound := boundAt(pod, now)
	if e != nil {
		bound = e.bound
	}
	at, leaves := due(pod.Spec.Tolerations, n.taints, bound)
	switch {
	case !leaves:
		drop()
	case e == nil:
		e = &eviction{pod: cache.MetaObjectToName(pod).AsNamespacedName(), uid: pod.UID, epoch: n.epoch, bound: bound, due: at}
		r.evictions[key] = e
	case at.Before(e.due):
		e.due = at
	}
	return e, off
}

// evict has the pod of e deleted. An error asks for another try.
func (r *run) evict(ctx context.Context, e *eviction) error {
	if !e.announced {
		e.announced = true
		r.event(e, "Marking for deletion Pod "+e.pod.String())
	}
	deleted, err := r.remove(ctx, e)
	switch {
	case apierrors.IsConflict(err):
		return loop.Quiet(err) // it has changed: look at it again
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("evict pod %s: %w", e.pod, err)
	}
	// The entry goes when the cache has heard of it: an old copy of the pod must
	// not begin it again.
	e.done = true
	if deleted {
		r.log.Info("pod evicted", "pod", e.pod, "due", e.due)
		r.metrics.deleted(time.Since(e.due))
	}
	return nil
}

// remove deletes the pod of e as it is now, unless somebody has done so.
func (r *run) remove(ctx context.Context, e *eviction) (deleted bool, err error) {
	pods := r.client.CoreV1().Pods(e.pod.Namespace)
	pod, err := pods.Get(ctx, e.pod.Name, metav1.GetOptions{})
	if err != nil || pod.UID != e.uid || pod.DeletionTimestamp != nil {
		return false, err
	}
	patch, err := disruption(pod, metav1.Now())
	if err != nil {
		return false, err
	}
	if patch != nil {
		_, err = pods.Patch(ctx, e.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil {
			return false, err
		}
	}
	err = pods.Delete(ctx, e.pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(e.uid))})
	return err == nil, err
}

// disruption returns the patch of a pod's status that says why it is deleted, nil
// if the status says so already.
func disruption(p *corev1.Pod, now metav1.Time) ([]byte, error) {
	want := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: p.Generation,
		Reason: reasonCondition, Message: message, LastTransitionTime: now,
	}
	for _, c := range p.Status.Conditions {
		if c.Type != want.Type || c.Status != want.Status {
			continue
		}
		if c.Reason == want.Reason && c.Message == want.Message {
			return nil, nil
		}
		want.LastTransitionTime = c.LastTransitionTime
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID}, // not another pod of this name
		"status":   map[string]any{"conditions": []corev1.PodCondition{want}},
	})
}

func (r *run) event(e *eviction, text string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: e.pod.Namespace, Name: e.pod.Name, UID: e.uid}
	r.events.Event(ref, corev1.EventTypeNormal, reasonEvent, text)
}
