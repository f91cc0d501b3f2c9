package garbage

// What is done about an object.

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// at returns the client of where objects like id are.
func (r *run) at(id identity) (metadata.ResourceInterface, error) {
	p, err := r.kinds.find(id.apiVersion, id.kind)
	if err != nil {
		return nil, loop.Quiet(err)
	}
	if p.namespaced {
		return r.objects.Resource(p.GroupVersionResource).Namespace(id.namespace), nil
	}
	return r.objects.Resource(p.GroupVersionResource), nil
}

// live returns an object as the API server has it, nil if it is gone or another
// one has its name.
func (r *run) live(ctx context.Context, id identity) (*metav1.PartialObjectMetadata, error) {
	c, err := r.at(id)
	if err != nil {
		return nil, err
	}
	o, err := c.Get(ctx, id.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && o.UID != id.uid {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", id, err)
	}
	return o, nil
}

// delete looks at whether the object uid should be deleted, and does it.
func (r *run) delete(ctx context.Context, uid types.UID) (time.Duration, error) {
	v, ok := r.graph.look(uid)
	if !ok || v.deleting && !v.foreground {
		return 0, nil
	}
	o, err := r.live(ctx, v.identity)
	if err != nil {
		return 0, err
	}
	if o == nil {
		r.gone(v.identity)
		return 0, nil
	}
	switch {
	case v.virtual:
		// It exists; its event will tell more, if its kind is watched.
		return 0, unsure("%s has not been seen yet", v.identity)
	case o.DeletionTimestamp != nil && slices.Contains(o.Finalizers, metav1.FinalizerDeleteDependents):
		return 0, r.await(ctx, v, o)
	case o.DeletionTimestamp != nil || len(o.OwnerReferences) == 0:
		return 0, nil
	}
	refs := slices.DeleteFunc(slices.Clone(o.OwnerReferences), func(ref metav1.OwnerReference) bool {
		_, orphaned := r.orphaned.Get(ref.UID)
		return orphaned
	})
	solid, waiting, err := r.owners(ctx, v.identity, refs)
	if err != nil {
		return 0, err
	}
	switch {
	case len(solid) == len(o.OwnerReferences):
		return 0, nil
	case len(solid) > 0 || len(refs) == 0:
		return 0, r.patch(ctx, v.identity, o, map[string]any{"ownerReferences": solid})
	case len(waiting) > 0 && len(v.dependents) > 0:
		return 0, r.foreground(ctx, v, o)
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case slices.Contains(o.Finalizers, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(o.Finalizers, metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	return 0, r.remove(ctx, v.identity, o, policy)
}

// gone notes that an object is not there.
func (r *run) gone(id identity) {
	r.absent.Add(id, nil)
	r.do(r.graph.missing(id))
}

// await lets an object go that waits for its dependents, or has them deleted.
func (r *run) await(ctx context.Context, v view, o *metav1.PartialObjectMetadata) error {
	if !v.waits {
		return r.dropFinalizer(ctx, v.identity, o, metav1.FinalizerDeleteDependents)
	}
	r.do(work{delete: v.blocking})
	return nil
}

// foreground deletes an object whose owner waits for it, so that it in turn waits
// for its dependents. Where they wait for each other in a circle, that is broken.
func (r *run) foreground(ctx context.Context, v view, o *metav1.PartialObjectMetadata) error {
	if v.cyclic {
		free := slices.Clone(o.OwnerReferences)
		changed := false
		for i := range free {
			changed = changed || free[i].BlockOwnerDeletion != nil && *free[i].BlockOwnerDeletion
			no := false
			free[i].BlockOwnerDeletion = &no
		}
		if changed {
			if err := r.patch(ctx, v.identity, o, map[string]any{"ownerReferences": free}); err != nil {
				return err
			}
			return unsure("%s no longer blocks its owners", v.identity) // and has another version
		}
	}
	return r.remove(ctx, v.identity, o, metav1.DeletePropagationForeground)
}

// owners picks the references to what exists and does not wait for its dependents,
// and those to what waits. What the others name does not exist.
func (r *run) owners(ctx context.Context, id identity, refs []metav1.OwnerReference) (solid, waiting []metav1.OwnerReference, err error) {
	for _, ref := range refs {
		p, err := r.kinds.find(ref.APIVersion, ref.Kind)
		if err != nil {
			return nil, nil, loop.Quiet(err)
		}
		owner := identity{ref.APIVersion, ref.Kind, "", ref.Name, ref.UID}
		if p.namespaced {
			owner.namespace = id.namespace
		}
		if p.namespaced && id.namespace == "" {
			solid = append(solid, ref) // nobody can tell which namespace is meant
			continue
		}
		if _, known := r.absent.Get(owner); known {
			continue
		}
		o, err := r.live(ctx, owner)
		switch {
		case err != nil:
			return nil, nil, err
		case o == nil:
			r.absent.Add(owner, nil)
		case o.DeletionTimestamp != nil && slices.Contains(o.Finalizers, metav1.FinalizerDeleteDependents):
			waiting = append(waiting, ref)
		default:
			solid = append(solid, ref)
		}
	}
	return solid, waiting, nil
}

// orphan lets the dependents of the object uid go, then the object.
func (r *run) orphan(ctx context.Context, uid types.UID) (time.Duration, error) {
	v, ok := r.graph.look(uid)
	if !ok || !v.orphaning {
		return 0, nil
	}
	for _, d := range v.dependents {
		o, err := r.live(ctx, d.identity)
		if err != nil {
			return 0, err
		}
		if o == nil {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(o.OwnerReferences), func(ref metav1.OwnerReference) bool { return ref.UID == uid })
		if len(left) == len(o.OwnerReferences) {
			continue
		}
		if err := r.patch(ctx, d.identity, o, map[string]any{"ownerReferences": left}); err != nil {
			return 0, err
		}
	}
	o, err := r.live(ctx, v.identity)
	if err != nil || o == nil {
		return 0, err
	}
	r.orphaned.Add(uid, nil)
	return 0, r.dropFinalizer(ctx, v.identity, o, metav1.FinalizerOrphanDependents)
}

func (r *run) dropFinalizer(ctx context.Context, id identity, o *metav1.PartialObjectMetadata, finalizer string) error {
	left := slices.DeleteFunc(slices.Clone(o.Finalizers), func(f string) bool { return f == finalizer })
	if len(left) == len(o.Finalizers) {
		return nil
	}
	return r.patch(ctx, id, o, map[string]any{"finalizers": left})
}

// patch changes the metadata of o, if it still is as it was read.
func (r *run) patch(ctx context.Context, id identity, o *metav1.PartialObjectMetadata, m map[string]any) error {
	c, err := r.at(id)
	if err != nil {
		return err
	}
	m["uid"], m["resourceVersion"] = o.UID, o.ResourceVersion
	data, err := json.Marshal(map[string]any{"metadata": m})
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	_, err = c.Patch(ctx, id.name, types.MergePatchType, data, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return loop.Quiet(err)
	case err != nil:
		return fmt.Errorf("change %s: %w", id, err)
	}
	return nil
}

// remove deletes o, if it still is as it was read.
func (r *run) remove(ctx context.Context, id identity, o *metav1.PartialObjectMetadata, policy metav1.DeletionPropagation) error {
	c, err := r.at(id)
	if err != nil {
		return err
	}
	err = c.Delete(ctx, id.name, metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err):
		r.gone(id)
		return nil
	case apierrors.IsConflict(err):
		return loop.Quiet(err)
	case err != nil:
		return fmt.Errorf("delete %s: %w", id, err)
	}
	r.log.Debug("deleted", "object", id.String(), "policy", policy)
	return nil
}
