// This file ends a pod: it decides when that starts, and removes the pod.

package pods

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

// judge starts the pod's end, or moves it forward.
func (w *worker) judge(now time.Time) {
	w.endForShutdown(now)
	if w.gone || w.pod.DeletionTimestamp != nil {
		grace := gracePeriod(w.pod)
		if g := w.pod.DeletionGracePeriodSeconds; g != nil {
			grace = max(time.Duration(*g)*time.Second, minGrace)
		}
		w.end(now.Add(grace), &kill{})
	}
	// As in the kubelet, a final phase in the API is a request to stop the pod, whoever wrote it.
	if w.ended || w.leaving || !w.static && w.apiKnown && terminal(w.api.Phase) {
		w.end(now.Add(gracePeriod(w.pod)), &kill{})
		return
	}
	seconds := w.pod.Spec.ActiveDeadlineSeconds
	if seconds == nil || w.status.StartTime == nil || w.kill != nil {
		return
	}
	if at := w.status.StartTime.Add(time.Duration(*seconds) * time.Second); at.After(now) {
		w.at(at)
		return
	}
	message := "Pod was active on the node longer than the specified deadline"
	w.r.cfg.Events.Event(w.ref, corev1.EventTypeNormal, "DeadlineExceeded", message)
	w.end(now.Add(gracePeriod(w.pod)), &kill{reason: "DeadlineExceeded", message: message, failed: true})
}

// end starts to kill the pod, or moves the deadline forward.
func (w *worker) end(by time.Time, k *kill) {
	if w.kill == nil {
		k.by = by
		w.kill = k
		for _, c := range w.containers {
			if c.startCancel != nil {
				c.startCancel()
			}
		}
		return
	}
	if by.Before(w.kill.by) {
		w.kill.by = by
	}
}

// left reports whether nothing of the pod runs or is under way. Its files stay, in case
// this agent is the node's again.
func (w *worker) left(s situation) bool {
	return s.quiet() && !w.sandbox.busy && !w.apiWrite.busy && !w.removal.busy && w.undisturbed()
}

// finish removes the pod once nothing of it runs: first its volumes, then the object
// in the API, then the rest on this node. It reports whether that is done.
func (w *worker) finish(s situation) bool {
	now := s.now
	if !w.ended || !s.quiet() || w.sandbox.busy {
		return false
	}
	if w.removal.busy || w.apiWrite.busy {
		return false
	}
	if w.removal.at.After(now) {
		w.at(w.removal.at)
		return false
	}
	if err := w.volumes.TearDown(w.id.UID); err != nil {
		w.log.Warn("cannot remove volumes, will try again", "err", err)
		w.removal.failed(now, w.r.cfg.WriteRetry)
		w.at(w.removal.at)
		return false
	}
	w.sandbox.done = false
	switch {
	case w.gone && !w.undisturbed():
	case w.gone:
		if err := w.clear(); err != nil {
			w.log.Warn("cannot remove what is left of the pod, will try again", "err", err)
			w.removal.failed(now, w.r.cfg.WriteRetry)
			w.at(w.removal.at)
			return false
		}
		return true
	case w.pod.DeletionTimestamp != nil && w.apiKnown && (terminal(w.api.Phase) || w.rejected.hopeless):
		w.delete(now)
	}
	return false
}

// clear removes the containers, the sandbox and the files of the pod. Containers too
// young to be removed stay, and then the sandbox does too; Runner.collect removes them
// later.
func (w *worker) clear() error {
	listed, err := w.r.lister.get(w.ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	now, left := time.Now(), false
	for i := range listed[w.id.UID] {
		c := &listed[w.id.UID][i]
		if w.r.cfg.Retention.young(c, now) {
			left = true
		} else if err := w.r.cfg.Runtime.Remove(w.ctx, c.ID); err != nil {
			return fmt.Errorf("remove container %s: %w", c.Name, err)
		}
	}
	if !left {
		if err := w.r.cfg.Runtime.RemoveSandbox(w.ctx, w.id); err != nil {
			return fmt.Errorf("remove sandbox: %w", err)
		}
	}
	w.r.objects.forget(w.id.UID, max(10*w.r.cfg.VolumeRefresh, time.Hour))
	return errors.Join(runtime.RemoveAll(w.r.places.podLogs(w.id)), runtime.RemoveAll(w.r.places.pod(w.id.UID)))
}
