package job

// Pods whose Job is gone or done with, and that nobody will count any more: their
// finalizer must not keep them for ever.

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// watchStrays calls add with the key of each pod that may be a stray.
func (c *Controller) watchStrays(add func(key string)) (stop func(), err error) {
	consider := func(obj any) {
		if p, ok := obj.(*corev1.Pod); ok && tracked(p) && !c.counted(p) {
			add(p.Namespace + "/" + p.Name)
		}
	}
	var watches loop.Watches
	watches.Add(loop.Handle(c.podInf, cache.ResourceEventHandlerFuncs{
		AddFunc: consider, UpdateFunc: func(_, obj any) { consider(obj) },
	}))
	ofJob := func(obj any) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		j, ok := obj.(*batchv1.Job)
		if !ok {
			return
		}
		for _, owner := range []types.UID{j.UID, ""} { // "" is of pods that it might have adopted
			held, _ := c.pods.Controlled(j.Namespace, owner) // a lookup in a cache's own index does not fail
			for _, p := range held {
				consider(p)
			}
		}
	}
	watches.Add(loop.Handle(c.inf, cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) {
			if j, ok := obj.(*batchv1.Job); ok && finished(j) {
				ofJob(j)
			}
		},
		DeleteFunc: ofJob,
	}))
	return watches.All()
}

// keeps tells whether j keeps its pods' finalizer: it will count them, or another controller
// manages it and takes the finalizer off itself.
func keeps(j *batchv1.Job) bool { return !finished(j) || elsewhere(j) }

// counted tells whether the cache knows a Job that keeps p, or p is controlled by something that
// is no Job: then it is not for this controller to free.
func (c *Controller) counted(p *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(p)
	switch {
	case ref == nil:
		return p.DeletionTimestamp == nil && len(c.matching(p)) > 0
	case ref.Kind != "Job" || ref.APIVersion != batchv1.SchemeGroupVersion.String():
		return true
	}
	j, err := c.jobs.Jobs(p.Namespace).Get(ref.Name)
	return err == nil && j.UID == ref.UID && keeps(j)
}

// stray takes the finalizer off the pod at key if no Job keeps it. The cache of Jobs
// may be behind that of pods, so the server is asked.
func (c *Controller) stray(ctx context.Context, key string) (time.Duration, error) {
	obj, exists, err := c.podInf.GetStore().GetByKey(key)
	p, ok := obj.(*corev1.Pod)
	if err != nil || !exists || !ok || !tracked(p) || c.counted(p) {
		return 0, err
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		j, err := c.client.BatchV1().Jobs(p.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("look up job %s: %w", ref.Name, err)
		}
		if err == nil && j.UID == ref.UID && keeps(j) {
			return 0, nil
		}
	}
	return 0, c.pods.FreeOrphan(ctx, p)
}
