package scheduler

// Evict: makes room on a node, as a search has found it.

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// wantsSearch has a search made for a pod that fits nowhere, if that may help it. told
// means that the binding that is returned, b or that of another pod, is to be written at
// once, as no search is made for it.
func (r *run) wantsSearch(b binding, needs cause) (out binding, told bool) {
	policy := b.pod.pod.Spec.PreemptionPolicy
	switch {
	case b.pod.over != "" || b.why == noNodes:
		return b, true
	case policy != nil && *policy == corev1.PreemptNever:
		b.why += " preemption: " + never
		return b, true
	case needs&byEviction == 0:
		r.cache.endNomination(keyOf(b.pod.pod))
		nodes := r.cache.size()
		b.why += " preemption: " + unavailable(nodes, map[string]int{notHelpful: nodes})
		return b, true
	}
	out, told = r.searches.add(b)
	if told {
		out.why += " preemption: " + searchSkipped + "."
	}
	return out, told
}

// searchAll makes searches, one by one, until ctx is done. After each it rests, so that the
// searches leave most of the time to the pods that fit somewhere.
func (r *run) searchAll(ctx context.Context) error {
	for {
		b, ok := r.searches.take(ctx)
		if !ok {
			return nil
		}
		var found preemption
		err := loop.Protect(func() error {
			found = r.search(b)
			return nil
		})
		if loop.Broken(r.log, "pod "+b.pod.name().String(), err) {
			r.queue.rouse(b.pod.name())
			continue
		}
		if !found.gone {
			if !found.room && !r.send(ctx, found.told(b)) {
				return nil
			}
			r.queue.rouse(found.outranks...)
		}
		rest := time.NewTimer(restShare * found.took)
		select {
		case <-ctx.Done():
		case <-rest.C:
		}
		rest.Stop()
	}
}

// search looks for a node for the pod of b, if that still needs one.
func (r *run) search(b binding) preemption {
	name := b.pod.name()
	pod, err := r.pods.Pods(name.Namespace).Get(name.Name)
	if err != nil || keyOf(pod) != keyOf(b.pod.pod) || !r.mine(pod) {
		return preemption{gone: true}
	}
	found := r.cache.preempt(newPodInfo(pod), newBudgets(r.budgets))
	r.metrics.attempts.Inc()
	if found.node != "" {
		r.metrics.victims.Observe(float64(len(found.victims)))
	}
	if found.room {
		r.queue.rouse(name)
	}
	return found
}

// told is b with what the search has found.
func (f *preemption) told(b binding) binding {
	if f.node == "" {
		b.why += " preemption: " + f.why
	} else {
		b.evicts = f
	}
	return b
}

// evict removes the victims. If one cannot be removed its pod is looked at again.
func (r *run) evict(ctx context.Context, b binding) {
	pod := b.pod.pod
	for _, victim := range b.evicts.victims {
		if victim.DeletionTimestamp != nil {
			continue // it is on its way out
		}
		switch err := r.remove(ctx, pod, victim); {
		case err == nil:
			r.event(victim, corev1.EventTypeNormal, "Preempted", fmt.Sprintf("Preempted by pod %s on node %s", pod.UID, b.evicts.node))
		case apierrors.IsNotFound(err): // which the watch will tell
		case ctx.Err() != nil:
			return
		default:
			r.log.Warn("remove a pod for one of higher priority; will look again",
				"pod", b.pod.name(), "victim", keyOf(victim).NamespacedName, "node", b.evicts.node, "error", err)
			r.cache.keepVictim(keyOf(pod), keyOf(victim))
			r.queue.rouse(b.pod.name())
		}
	}
}

// remove says why a victim has to go and deletes it.
func (r *run) remove(ctx context.Context, pod, victim *corev1.Pod) error {
	c, changed := withCondition(victim, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message: pod.Spec.SchedulerName + ": preempting to accommodate a higher priority pod",
	})
	if changed {
		if err := r.patch(ctx, victim, map[string]any{"conditions": []corev1.PodCondition{c}}); err != nil {
			return err
		}
	}
	return r.client.CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name, *metav1.NewPreconditionDeleteOptions(string(victim.UID)))
}
