package children

// Making and deleting children.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxWrites is how many children a controller makes or deletes for one owner before
// it looks at the world again.
const MaxWrites = 500

// parallel is how many requests for one owner are under way at a time.
const parallel = 32

// Create makes n children, of which child(i) is the i-th, and returns how many it has
// made. It begins with one and doubles as long as all goes well, so that what
// cannot be made at all costs one request and not n. No error is returned and no
// event is written if the namespace is being deleted.
func (c *Children[T]) Create(ctx context.Context, o Owner, n int, child func(i int) T) (int, error) {
	done := 0
	for batch := 1; done < n; batch *= 2 {
		batch = min(batch, n-done)
		made, err := each(batch, func(i int) error {
			_, err := c.CreateOne(ctx, o, child(done+i))
			return err
		})
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

// CreateOne makes child, which is the caller's own, and returns it as the server made
// it.
func (c *Children[T]) CreateOne(ctx context.Context, o Owner, child T) (T, error) {
	child.SetOwnerReferences(append(child.GetOwnerReferences(), *c.reference(o)))
	out, err := c.cfg.Client(o.GetNamespace()).Create(ctx, child, metav1.CreateOptions{})
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			c.cfg.Events.Eventf(o.Object, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return out, fmt.Errorf("create a %s: %w", c.cfg.Noun, err)
	}
	c.note(o, func(w *writes[T]) { w.made[out.GetUID()] = made[T]{out, time.Now()} })
	c.cfg.Events.Eventf(o.Object, corev1.EventTypeNormal, "SuccessfulCreate", "Created %s: %v", c.cfg.Noun, out.GetName())
	return out, nil
}

// Delete deletes children, pods gracefully, and returns those that are gone or on their
// way. A child that another one of its name has replaced counts as gone.
func (c *Children[T]) Delete(ctx context.Context, o Owner, children []T) (gone []T, err error) {
	done := make([]bool, len(children))
	_, err = each(len(children), func(i int) error {
		failed := c.delete(ctx, o, children[i])
		done[i] = failed == nil
		return failed
	})
	for i, child := range children {
		if done[i] {
			gone = append(gone, child)
		}
	}
	return gone, err
}

func (c *Children[T]) delete(ctx context.Context, o Owner, child T) error {
	uid := child.GetUID()
	err := c.cfg.Client(child.GetNamespace()).Delete(ctx, child.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	switch {
	case err == nil:
		c.cfg.Events.Eventf(o.Object, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted %s: %v", c.cfg.Noun, child.GetName())
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
	default:
		c.cfg.Events.Eventf(o.Object, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return fmt.Errorf("delete %s %s: %w", c.cfg.Noun, child.GetName(), err)
	}
	c.note(o, func(w *writes[T]) { w.deleted[uid] = true })
	return nil
}

// Free takes the finalizer off children of o and returns how many are without it.
func (c *Children[T]) Free(ctx context.Context, o Owner, children []T) (int, error) {
	return each(len(children), func(i int) error {
		if !slices.Contains(children[i].GetFinalizers(), c.cfg.Finalizer) {
			return nil
		}
		if err := c.FreeOrphan(ctx, children[i]); err != nil {
			return err
		}
		c.note(o, func(w *writes[T]) { w.freed[children[i].GetUID()] = true })
		return nil
	})
}

// FreeOrphan takes the finalizer off a child whose owner is gone.
func (c *Children[T]) FreeOrphan(ctx context.Context, child T) error {
	_, err := c.patch(ctx, child, map[string]any{"uid": child.GetUID(), "$deleteFromPrimitiveList/finalizers": []string{c.cfg.Finalizer}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("take the finalizer off %s %s: %w", c.cfg.Noun, child.GetName(), err)
	}
	return nil
}

// Message is what the server said in err, without what was being done.
func Message(err error) string {
	if s := apierrors.APIStatus(nil); errors.As(err, &s) {
		return s.Status().Message
	}
	return err.Error()
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
