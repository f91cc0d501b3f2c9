// This file removes ended containers that are not kept.

package pods

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

// Bounds of one pass. Each pod has one container removed at a time, so that a pod with
// many files uses at most one of maxRemovals.
const (
	maxGarbage  = 32 // containers of a pod in one pass, and before one start
	maxRemovals = 4  // pods at a time
)

// collect starts the removal of containers that Config.Retention does not keep: by the
// workers of their pods, or by new workers for pods that the API does not have any more.
// It does not wait for them, and does nothing while another agent runs the pods.
func (r *Runner) collect(ctx context.Context, wg *sync.WaitGroup) {
	if r.cfg.Fence.Up() {
		return
	}
	listed, err := r.lister.get(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.log.Warn("cannot look for containers to remove, will try again", "err", err)
			node := corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: r.cfg.NodeName, UID: types.UID(r.cfg.NodeName)}
			r.cfg.Events.Event(node, corev1.EventTypeWarning, "ContainerGCFailed", err.Error())
		}
		return
	}
	want := r.wanted()
	r.mu.Lock()
	defer r.mu.Unlock()
	deleted := func(uid types.UID) bool {
		return want.lacks(uid, false) && want.lacks(uid, true) && r.workers[uid] == nil
	}
	all := slices.Concat(slices.Collect(maps.Values(listed))...)
	byPod := map[types.UID][]runtime.ContainerStatus{}
	for _, c := range garbage(all, deleted, *r.cfg.Retention, time.Now()) {
		if list := byPod[c.Pod.UID]; len(list) < maxGarbage {
			byPod[c.Pod.UID] = append(list, c)
		}
	}
	for uid, list := range byPod {
		switch w := r.workers[uid]; {
		case w != nil:
			w.discard(list)
		case deleted(uid) && r.removing[uid] == nil:
			r.clearLocked(ctx, wg, list[0].Pod)
		}
	}
}

// clearLocked makes a worker that stops and removes a pod that the API does not have.
func (r *Runner) clearLocked(ctx context.Context, wg *sync.WaitGroup, id runtime.PodID) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name, UID: id.UID}}
	r.startLocked(ctx, wg, newWorker(r, pod, workerOptions{admitted: true, gone: true}))
}

// onlyYoung reports whether a pod has only ended containers, and some of them are too
// young to be removed.
func (r *Runner) onlyYoung(list []runtime.ContainerStatus) bool {
	now := time.Now()
	return !slices.ContainsFunc(list, func(c runtime.ContainerStatus) bool { return c.State != runtime.Exited }) &&
		slices.ContainsFunc(list, func(c runtime.ContainerStatus) bool { return r.cfg.Retention.young(&c, now) })
}

// discard gives the worker the containers to remove. They replace the rest of an earlier
// list.
func (w *worker) discard(list []runtime.ContainerStatus) {
	w.mu.Lock()
	w.unwanted = list
	w.mu.Unlock()
	w.nudge()
}

// discardNext starts to remove the next of those containers. It removes none while a
// container of the pod is being started, since a start removes some by itself.
func (w *worker) discardNext(s situation) {
	if w.discarding != nil || w.gone || s.startingAny() {
		return
	}
	for len(w.garbage) > 0 {
		c := w.garbage[0]
		w.garbage = w.garbage[1:]
		if w.container(c.Name).stopCancel != nil {
			continue // Stop may not have returned; the next pass lists it again
		}
		w.remember(s, &c)
		ctx, cancel := context.WithCancel(w.ctx)
		w.discarding = cancel
		w.task(func() func() {
			err := w.removeInTurn(ctx, &c)
			return func() {
				if err != nil && ctx.Err() == nil && !w.discardFailed {
					w.discardFailed = true // one log line for a list
					w.log.Warn("cannot remove a container that has ended, will try again", "container", c.Name, "attempt", c.Attempt, "err", err)
				}
				cancel()
				w.discarding = nil
			}
		})
		return
	}
}

// undisturbed reports whether discardNext removes no container now. If it does, the
// removal is cancelled if possible, and the loop runs again once it has ended.
func (w *worker) undisturbed() bool {
	if w.discarding == nil {
		return true
	}
	w.discarding()
	return false
}

// remember keeps the status of an attempt that is being removed. Without it the container
// would count as never run, and be run again.
func (w *worker) remember(s situation, c *runtime.ContainerStatus) {
	rec := w.container(c.Name)
	for i := range s.facts {
		for _, a := range []*runtime.ContainerStatus{s.facts[i].newest, s.facts[i].previous} {
			if a != nil && a.ID == c.ID && (rec.lost == nil || rec.lost.Attempt <= a.Attempt) {
				last := *a
				rec.lost = &last
			}
		}
	}
}

// removeInTurn removes a container with its log. It waits while maxRemovals others are
// being removed.
func (w *worker) removeInTurn(ctx context.Context, c *runtime.ContainerStatus) error {
	select {
	case w.r.removals <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-w.r.removals }()
	return w.remove(ctx, c)
}

// remove removes a container that has ended, with its log.
func (w *worker) remove(ctx context.Context, c *runtime.ContainerStatus) error {
	if err := w.r.cfg.Runtime.Remove(ctx, c.ID); err != nil {
		return fmt.Errorf("remove attempt %d of container %s: %w", c.Attempt, c.Name, err)
	}
	return w.r.places.removeAttempt(w.id, c.Name, c.Attempt)
}

// prune removes attempts of a container that is about to be started, so that one that
// restarts often does not wait for a pass. The newest attempt is in the pod's status and
// stays.
func (w *worker) prune(ctx context.Context, name string, next int) error {
	keep, now := w.r.cfg.Retention, time.Now()
	if keep.PerContainer < 0 {
		return nil
	}
	listed, err := w.r.lister.get(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	kept, removed := 0, 0
	for i := range listed[w.id.UID] {
		c := &listed[w.id.UID][i]
		switch {
		case c.Name != name || c.Attempt >= next:
		case kept < max(keep.PerContainer, 1): // newest first
			kept++
		case keep.young(c, now) || removed == maxGarbage:
		default:
			if err := w.remove(ctx, c); err != nil {
				return err
			}
			removed++
		}
	}
	return nil
}
