// This file writes a worker's results to the API.

package pods

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// jitter returns a random time between half and one and a half times d.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d)
}

// statusPatch is the patch that turns one status into another on the pod with
// that uid and no other. It is nil if the statuses are equal in JSON.
func statusPatch(uid types.UID, from, to *corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(corev1.Pod{Status: *from})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	after, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Status: *to})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("compare statuses: %w", err)
	}
	if bytes.Equal(patch, fmt.Appendf(nil, `{"metadata":{"uid":%q}}`, uid)) {
		return nil, nil
	}
	return patch, nil
}

// due reports whether an operation may be tried now. If not, the loop looks again at the
// time when it may.
func (w *worker) due(a *retry, now time.Time) bool {
	if a.busy {
		return false
	}
	if a.at.After(now) {
		w.at(a.at)
		return false
	}
	return true
}

// write patches the status in the API to be that of pod.
func (w *worker) write(now time.Time, pod *corev1.Pod) {
	if !w.due(&w.apiWrite, now) {
		return
	}
	from := w.object()
	status := pod.Status
	if w.rejected.phaseOnly {
		status = *w.api.DeepCopy()
		status.Phase, status.Reason = pod.Status.Phase, pod.Status.Reason
	}
	patch, err := statusPatch(from.UID, &w.api, &status)
	if err != nil {
		w.log.Error("status cannot be written", "err", err)
		return
	}
	if patch == nil {
		w.api, w.rejected.phaseOnly = status, false
		return
	}
	w.apiWrite.busy = true
	w.task(func() func() {
		var (
			out *corev1.Pod
			err error
		)
		w.withToken(func() {
			out, err = w.r.cfg.API.Pods(w.id.Namespace).Patch(w.ctx, w.id.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		})
		return func() { w.wrote(patch, from, out, err) }
	})
}

// wrote handles the answer to a patch that was made of the pod from.
func (w *worker) wrote(patch []byte, from, out *corev1.Pod, err error) {
	w.apiWrite.busy = false
	w.r.count("patch", err)
	switch {
	case w.ctx.Err() != nil:
	case err == nil && out.UID == from.UID:
		switch {
		case w.rejected.phaseOnly: // the rest is tried again
			w.rejected.phaseOnly = false
			w.apiWrite.failed(time.Now(), w.r.cfg.WriteRetry)
		case bytes.Equal(patch, w.patched):
			// The server accepted the patch and its answer does not contain it: retry with
			// back-off.
			w.apiWrite.failed(time.Now(), w.r.cfg.WriteRetry)
		default:
			w.apiWrite.succeeded()
			w.rejected = rejection{}
		}
		w.patched = patch
		if w.news(from, out) {
			w.wroteAt = time.Now()
			w.setObject(out)
		}
	case err == nil || apierrors.IsNotFound(err):
		// Another pod has the name, or none: the watch will report that ours is deleted.
		w.apiWrite.failed(time.Now(), w.r.cfg.WriteRetry)
	case apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err): // for good
		w.apiWrite.failed(time.Now(), w.r.cfg.WriteRetry)
		w.reject(err)
	default:
		w.apiWrite.failed(time.Now(), w.r.cfg.WriteRetry)
		w.log.Debug("status not written, will try again", "err", err, "in", w.apiWrite.delay)
	}
}

// A rejection is that the API server refuses the status for good.
type rejection struct {
	text      string // why; empty if it does not
	phaseOnly bool   // the next patch has the phase and its reason alone
	hopeless  bool   // that was refused, too
}

// reject records that a patch was refused for good. The next one has the phase alone, for who waits
// for the pod's end, and the one after that the whole status again.
func (w *worker) reject(err error) {
	r := &w.rejected
	if r.text != err.Error() {
		w.log.Warn("the API server refuses the pod's status, will try again", "err", err)
	}
	r.text, r.hopeless, r.phaseOnly = err.Error(), r.hopeless || r.phaseOnly, !r.phaseOnly
}

// news reports whether the answer to a patch that was made of the pod from replaces
// the pod as last seen: the watch may have delivered a newer one meanwhile. If versions
// cannot be compared, a pod that the watch delivered counts as newer.
func (w *worker) news(from, answer *corev1.Pod) bool {
	now := w.object()
	if now == nil || now.UID != answer.UID {
		return false // the mirror that was written does not exist any more
	}
	order, err := resourceversion.CompareResourceVersion(answer.ResourceVersion, now.ResourceVersion)
	if err != nil {
		return now == from
	}
	return order >= 0
}

// atOnce deletes the pod with that uid and no other, without a grace period.
func atOnce(uid types.UID) metav1.DeleteOptions {
	o := metav1.NewPreconditionDeleteOptions(string(uid))
	o.GracePeriodSeconds = new(int64)
	return *o
}

// delete deletes the pod's object for good.
func (w *worker) delete(now time.Time) {
	if !w.due(&w.removal, now) {
		return
	}
	w.removal.busy = true
	w.task(func() func() {
		var err error
		w.withToken(func() {
			err = w.r.cfg.API.Pods(w.id.Namespace).Delete(w.ctx, w.id.Name, atOnce(w.id.UID))
		})
		return func() { w.deleted(err) }
	})
}

func (w *worker) deleted(err error) {
	w.removal.busy = false
	w.r.count("delete", err)
	switch {
	case w.ctx.Err() != nil:
	case err == nil && len(w.pod.Finalizers) > 0:
		// It is removed with its finalizers; the watch reports that.
		w.removal.failed(time.Now(), w.r.cfg.WriteRetry)
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		w.removal.succeeded()
		w.gone = true
	default:
		w.removal.failed(time.Now(), w.r.cfg.WriteRetry)
		w.log.Debug("pod not deleted, will try again", "err", err, "in", w.removal.delay)
	}
}

// withToken bounds how many workers write at the same time.
func (w *worker) withToken(f func()) {
	select {
	case w.r.writes <- struct{}{}:
		defer func() { <-w.r.writes }()
		f()
	case <-w.ctx.Done():
		f() // which fails at once
	}
}

func (r *Runner) count(verb string, err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	r.cfg.Metrics.writes.WithLabelValues(verb, result).Inc()
}
