package children

// Adopting children and releasing them.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// release releases those children that o's selector does not match and returns the
// others.
func (c *Children[T]) release(ctx context.Context, o Owner, have []T) ([]T, error) {
	kept := have[:0]
	var errs []error
	for _, child := range have {
		switch {
		case o.Selector.Matches(labels.Set(child.GetLabels())):
			kept = append(kept, child)
		case o.GetDeletionTimestamp() == nil:
			if err := c.letGo(ctx, o, child); err != nil {
				errs = append(errs, fmt.Errorf("release %s %s: %w", c.cfg.Noun, child.GetName(), err))
			}
		}
	}
	return kept, errors.Join(errs...)
}

func (c *Children[T]) letGo(ctx context.Context, o Owner, child T) error {
	m := map[string]any{
		"uid":             child.GetUID(),
		"ownerReferences": []any{map[string]any{"$patch": "delete", "uid": o.GetUID()}},
	}
	if c.cfg.Finalizer != "" {
		m["$deleteFromPrimitiveList/finalizers"] = []string{c.cfg.Finalizer}
	}
	_, err := c.patch(ctx, child, m)
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil // gone, or has no such reference any more
	}
	return err
}

// adopt makes the children that o may have its own. As they are from then on, they
// are in the overlay.
func (c *Children[T]) adopt(ctx context.Context, o Owner) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	orphans, err := c.find(orphansOf(o.GetNamespace()))
	if err != nil {
		return err
	}
	var errs []error
	confirmed := false
	for _, child := range orphans {
		if !c.adoptable(o, child) {
			continue
		}
		if !confirmed {
			if err := c.confirm(ctx, o); err != nil {
				return fmt.Errorf("adopt %ss: %w", c.cfg.Noun, err)
			}
			confirmed = true
		}
		if err := c.take(ctx, o, child); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("adopt %s %s: %w", c.cfg.Noun, child.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// adoptable tells whether child, which the cache shows without a controller, may
// become o's and is not already.
func (c *Children[T]) adoptable(o Owner, child T) bool {
	if child.GetDeletionTimestamp() != nil || !o.Selector.Matches(labels.Set(child.GetLabels())) || c.cfg.Adopt != nil && !c.cfg.Adopt(o, child) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.recent[o.key()]
	if w == nil || w.owner != o.GetUID() {
		return true
	}
	_, taken := w.made[child.GetUID()]
	return !taken
}

// confirm asks the server whether o is still there, is the same, and stays.
func (c *Children[T]) confirm(ctx context.Context, o Owner) error {
	live, err := c.cfg.Live(ctx, o.GetNamespace(), o.GetName())
	switch {
	case err != nil:
		return fmt.Errorf("look up %s %s: %w", c.cfg.Kind.Kind, o.GetName(), err)
	case live.GetUID() != o.GetUID():
		return fmt.Errorf("%s %s is another one by now: uid %s, not %s", c.cfg.Kind.Kind, o.GetName(), live.GetUID(), o.GetUID())
	case live.GetDeletionTimestamp() != nil:
		return fmt.Errorf("%s %s is being deleted", c.cfg.Kind.Kind, o.GetName())
	}
	return nil
}

func (c *Children[T]) take(ctx context.Context, o Owner, child T) error {
	m := map[string]any{"uid": child.GetUID(), "ownerReferences": []any{c.reference(o)}}
	if c.cfg.Finalizer != "" {
		m["finalizers"] = []string{c.cfg.Finalizer}
	}
	taken, err := c.patch(ctx, child, m)
	if err != nil {
		return err
	}
	c.note(o, func(w *writes[T]) { w.made[taken.GetUID()] = made[T]{taken, time.Now()} })
	return nil
}

func (c *Children[T]) reference(o Owner) *metav1.OwnerReference {
	return metav1.NewControllerRef(o, c.cfg.Kind)
}

func (c *Children[T]) patch(ctx context.Context, child T, metadata map[string]any) (T, error) {
	data, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return child, fmt.Errorf("encode: %w", err)
	}
	return c.cfg.Client(child.GetNamespace()).Patch(ctx, child.GetName(), types.StrategicMergePatchType, data, metav1.PatchOptions{})
}
