package children

// Making and deleting pods.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxWrites is how many pods a controller makes or deletes for one owner before
// it looks at the world again.
const MaxWrites = 500

// parallel is how many requests for one owner are under way at a time.
const parallel = 32

// FromTemplate returns a pod to be made for o.
func FromTemplate(o Owner, t *corev1.PodTemplateSpec) *corev1.Pod {
	t = t.DeepCopy()
	prefix := o.GetName() + "-"
	if len(apivalidation.NameIsDNSSubdomain(prefix, true)) > 0 {
		prefix = o.GetName()
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: prefix, Namespace: o.GetNamespace(),
			Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers,
		},
		Spec: t.Spec,
	}
}

// Create makes n pods, of which pod(i) is the i-th, and returns how many it has
// made. It begins with one and doubles as long as all goes well, so that what
// cannot be made at all costs one request and not n. No error is returned and no
// event is written if the namespace is being deleted.
func (p *Pods) Create(ctx context.Context, o Owner, n int, pod func(i int) *corev1.Pod) (int, error) {
	done := 0
	for batch := 1; done < n; batch *= 2 {
		batch = min(batch, n-done)
		made, err := each(batch, func(i int) error { return p.create(ctx, o, pod(done+i)) })
		done += made
		if err != nil {
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				err = nil
			}
			return done, err
		}
	}
	return done, nil
}

func (p *Pods) create(ctx context.Context, o Owner, pod *corev1.Pod) error {
	pod.OwnerReferences = append(pod.OwnerReferences, *p.reference(o))
	out, err := p.cfg.Client.CoreV1().Pods(o.GetNamespace()).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			p.cfg.Events.Eventf(o.Object, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return fmt.Errorf("create a pod: %w", err)
	}
	p.note(o, func(w *writes) { w.made[out.UID] = made{out, time.Now()} })
	p.cfg.Events.Eventf(o.Object, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", out.Name)
	return nil
}

// Delete deletes pods gracefully and returns how many are gone or on their way.
// A pod that another one of its name has replaced counts as gone.
func (p *Pods) Delete(ctx context.Context, o Owner, pods []*corev1.Pod) (int, error) {
	return each(len(pods), func(i int) error { return p.delete(ctx, o, pods[i]) })
}

func (p *Pods) delete(ctx context.Context, o Owner, pod *corev1.Pod) error {
	err := p.cfg.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	switch {
	case err == nil:
		p.cfg.Events.Eventf(o.Object, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
	default:
		p.cfg.Events.Eventf(o.Object, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	p.note(o, func(w *writes) { w.deleted[pod.UID] = true })
	return nil
}

// Free takes the finalizer off pods of o and returns how many are without it.
func (p *Pods) Free(ctx context.Context, o Owner, pods []*corev1.Pod) (int, error) {
	return each(len(pods), func(i int) error {
		if !slices.Contains(pods[i].Finalizers, p.cfg.Finalizer) {
			return nil
		}
		if err := p.FreeOrphan(ctx, pods[i]); err != nil {
			return err
		}
		p.note(o, func(w *writes) { w.freed[pods[i].UID] = true })
		return nil
	})
}

// FreeOrphan takes the finalizer off a pod whose owner is gone.
func (p *Pods) FreeOrphan(ctx context.Context, pod *corev1.Pod) error {
	_, err := p.patch(ctx, pod, map[string]any{"uid": pod.UID, "$deleteFromPrimitiveList/finalizers": []string{p.cfg.Finalizer}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("take the finalizer off pod %s: %w", pod.Name, err)
	}
	return nil
}

// each calls f with 0 to n-1, several at a time. It returns how many calls went
// well and the first error.
func each(n int, f func(i int) error) (int, error) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	errs := make([]error, n)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = f(i)
		})
	}
	wg.Wait()
	failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(failed) == 0 {
		return n, nil
	}
	return n - len(failed), failed[0]
}
