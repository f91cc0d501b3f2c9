package children

// Adopting pods and letting go of them.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// release lets go of those pods that o's selector does not match and returns the
// others.
func (p *Pods) release(ctx context.Context, o Owner, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	kept := pods[:0]
	var errs []error
	for _, pod := range pods {
		switch {
		case pod.Namespace != o.GetNamespace():
			// Nobody owns across namespaces.
		case o.Selector.Matches(labels.Set(pod.Labels)):
			kept = append(kept, pod)
		case o.GetDeletionTimestamp() == nil:
			if err := p.letGo(ctx, o, pod); err != nil {
				errs = append(errs, fmt.Errorf("release pod %s: %w", pod.Name, err))
			}
		}
	}
	return kept, errors.Join(errs...)
}

func (p *Pods) letGo(ctx context.Context, o Owner, pod *corev1.Pod) error {
	m := map[string]any{
		"uid":             pod.UID,
		"ownerReferences": []any{map[string]any{"$patch": "delete", "uid": o.GetUID()}},
	}
	if p.cfg.Finalizer != "" {
		m["$deleteFromPrimitiveList/finalizers"] = []string{p.cfg.Finalizer}
	}
	_, err := p.patch(ctx, pod, m)
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil // gone, or has no such reference any more
	}
	return err
}

// adopt makes the pods that o may have its own. As they are from then on, they
// are in the overlay.
func (p *Pods) adopt(ctx context.Context, o Owner) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	orphans, err := p.indexed(orphansOf(o.GetNamespace()))
	if err != nil {
		return err
	}
	var errs []error
	confirmed := false
	for _, pod := range orphans {
		if !p.adoptable(o, pod) {
			continue
		}
		if !confirmed {
			if err := p.confirm(ctx, o); err != nil {
				return fmt.Errorf("adopt pods: %w", err)
			}
			confirmed = true
		}
		if err := p.take(ctx, o, pod); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("adopt pod %s: %w", pod.Name, err))
		}
	}
	return errors.Join(errs...)
}

// adoptable tells whether pod, which the cache shows without a controller, may
// become o's and is not already.
func (p *Pods) adoptable(o Owner, pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || !o.Selector.Matches(labels.Set(pod.Labels)) || p.cfg.Adopt != nil && !p.cfg.Adopt(pod) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.recent[o.key()]
	if w == nil || w.owner != o.GetUID() {
		return true
	}
	_, taken := w.made[pod.UID]
	return !taken
}

// confirm asks the server whether o is still there, is the same, and stays.
func (p *Pods) confirm(ctx context.Context, o Owner) error {
	live, err := p.cfg.Live(ctx, o.GetNamespace(), o.GetName())
	switch {
	case err != nil:
		return fmt.Errorf("look up %s %s: %w", p.cfg.Kind.Kind, o.GetName(), err)
	case live.GetUID() != o.GetUID():
		return fmt.Errorf("%s %s is another one by now: uid %s, not %s", p.cfg.Kind.Kind, o.GetName(), live.GetUID(), o.GetUID())
	case live.GetDeletionTimestamp() != nil:
		return fmt.Errorf("%s %s is being deleted", p.cfg.Kind.Kind, o.GetName())
	}
	return nil
}

func (p *Pods) take(ctx context.Context, o Owner, pod *corev1.Pod) error {
	m := map[string]any{"uid": pod.UID, "ownerReferences": []any{p.reference(o)}}
	if p.cfg.Finalizer != "" {
		m["finalizers"] = []string{p.cfg.Finalizer}
	}
	taken, err := p.patch(ctx, pod, m)
	if err != nil {
		return err
	}
	p.note(o, func(w *writes) { w.made[taken.UID] = made{taken, time.Now()} })
	return nil
}

func (p *Pods) reference(o Owner) *metav1.OwnerReference {
	return metav1.NewControllerRef(o, p.cfg.Kind)
}

func (p *Pods) patch(ctx context.Context, pod *corev1.Pod, metadata map[string]any) (*corev1.Pod, error) {
	data, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return p.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
}
