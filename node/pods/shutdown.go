// This file ends the pods of a node whose machine shuts down, phase by phase.

package pods

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// CriticalPriority is from which priority on a pod is critical: that of
// system-cluster-critical.
const CriticalPriority = 2_000_000_000

// A Phase of a shutdown ends the pods of a range of priorities.
type Phase struct {
	// Priority is the least of the phase's pods: they have it or a higher one, and less
	// than the next phase's. Pods below every phase are in the lowest.
	Priority int32
	// Grace bounds the phase. A pod of the phase has this grace period or its own, if that
	// is shorter.
	Grace time.Duration
}

// Reasons and messages in the API, in the kubelet's words.
const (
	reasonTerminated    = "Terminated"
	messageTerminated   = "Pod was terminated in response to imminent node shutdown."
	reasonNodeShutdown  = "NodeShutdown"
	messageNodeShutdown = "Pod was rejected as the node is shutting down."
)

const (
	// tellMin and tellMax bound how long a shutdown waits after its phases until the
	// statuses are written to the API. It waits for the rest of the phases' time, within
	// these bounds.
	tellMin = 2 * time.Second
	tellMax = 10 * time.Second
)

// An ending is the end of one pod in a shutdown. The worker's loop owns the flags.
type ending struct {
	grace                   time.Duration
	over                    chan struct{} // closed once nothing of the pod runs any more
	told                    chan struct{} // closed once its status is in the API
	started, isOver, isTold bool
}

// ShutDown ends all pods, those of the lowest phase first, and refuses new ones until
// Resume is called. A phase ends when all of its pods have ended, or after its grace; one
// without pods takes no time. ShutDown returns once the statuses of the ended pods are in
// the API, at most two seconds after the phases' time, or when ctx is done. Then pods of
// started phases still end, and the others continue to run. One call at a time.
func (r *Runner) ShutDown(ctx context.Context, phases []Phase) {
	r.refuseAll(true)
	select {
	case <-r.recalled:
	case <-ctx.Done():
		return
	}
	phases = slices.Clone(phases)
	slices.SortStableFunc(phases, func(a, b Phase) int { return cmp.Compare(a.Priority, b.Priority) })
	until := time.Now()
	for _, p := range phases {
		until = until.Add(p.Grace)
	}
	var all []*ending
	for i, p := range phases {
		turn := r.beginPhase(phases, i)
		if len(turn) == 0 {
			continue
		}
		r.log.Info("the node shuts down: pods are ended", "priority", p.Priority, "pods", len(turn), "within", p.Grace)
		all = append(all, turn...)
		left := await(ctx, p.Grace, turn, func(e *ending) <-chan struct{} { return e.over })
		if ctx.Err() != nil {
			return
		}
		if left > 0 {
			r.log.Warn("pods have not ended within their phase of the shutdown", "priority", p.Priority, "pods", left)
		}
	}
	left := await(ctx, min(max(time.Until(until), tellMin), tellMax), all, func(e *ending) <-chan struct{} { return e.told })
	if left > 0 && ctx.Err() == nil {
		r.log.Warn("the node shuts down before the API has every pod's status: it gets them when the node is back", "pods", left)
	}
}

// Resume admits new pods again, after a shutdown was cancelled. Ended pods stay ended.
func (r *Runner) Resume() { r.refuseAll(false) }

func (r *Runner) refuseAll(closing bool) {
	r.mu.Lock()
	r.closing = closing
	r.mu.Unlock()
	r.Wake()
}

// beginPhase starts the end of one phase's pods.
func (r *Runner) beginPhase(phases []Phase, i int) []*ending {
	r.mu.Lock()
	defer r.mu.Unlock()
	var turn []*ending
	for _, w := range r.workers {
		if pod, active := w.claim(); active && phaseOfPod(phases, pod) == i {
			turn = append(turn, w.shutDown(phases[i].Grace))
		}
	}
	return turn
}

// phaseOfPod is the phase, of those in ascending order, in which the pod ends.
func phaseOfPod(phases []Phase, pod *corev1.Pod) int {
	var priority int32
	if pod.Spec.Priority != nil {
		priority = *pod.Spec.Priority
	}
	found := 0
	for i := range phases {
		if phases[i].Priority <= priority {
			found = i
		}
	}
	return found
}

// await waits for all of list, for at most d or until ctx is done, and returns how many
// have not ended.
func await(ctx context.Context, d time.Duration, list []*ending, what func(*ending) <-chan struct{}) int {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for _, e := range list {
		select {
		case <-what(e):
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		break
	}
	left := 0
	for _, e := range list {
		select {
		case <-what(e):
		default:
			left++
		}
	}
	return left
}

// shutDown has the worker end its pod.
func (w *worker) shutDown(grace time.Duration) *ending {
	e := &ending{grace: grace, over: make(chan struct{}), told: make(chan struct{})}
	w.mu.Lock()
	done := w.finished
	w.wantsDown = e
	w.mu.Unlock()
	if done {
		e.settle(true, true)
	} else {
		w.nudge()
	}
	return e
}

func (e *ending) settle(over, told bool) {
	if over && !e.isOver {
		e.isOver = true
		close(e.over)
	}
	if told && !e.isTold {
		e.isTold = true
		close(e.told)
	}
}

// endForShutdown starts the pod's end, or moves it forward. A pod that only waits for its
// sidecars has succeeded and does not count as ended by the shutdown.
func (w *worker) endForShutdown(now time.Time) {
	e := w.down
	if e == nil || e.started {
		return
	}
	e.started = true
	if w.ended || w.leaving {
		return
	}
	k := &kill{reason: reasonTerminated, message: messageTerminated, failed: true, disrupted: true}
	if s := (situation{pod: w.pod, now: now, facts: w.facts, prepared: w.sandbox.done}); s.hasSucceeded() {
		k = &kill{}
	}
	w.end(now.Add(min(gracePeriod(w.pod), e.grace)), k)
}

// hasSucceeded reports whether all main containers have succeeded and are not restarted.
func (s *situation) hasSucceeded() bool {
	in := decide(*s)
	if !in.finished || in.failed {
		return false
	}
	for i := range s.facts {
		if f := &s.facts[i]; f.kind == mainContainer && !f.succeeded() {
			return false
		}
	}
	return true
}

// reportEnding closes the channels of the pod's ending.
func (w *worker) reportEnding(s situation) {
	if w.down == nil || !w.ended || !s.quiet() {
		return
	}
	status := &w.current().Status
	w.down.settle(true, w.static && w.mirror == nil || w.apiKnown && !w.apiWrite.busy && apiequality.Semantic.DeepEqual(&w.api, status))
}

// release closes the channels of the pod's ending, because the worker ends.
func (w *worker) release() {
	w.mu.Lock()
	w.finished = true
	e := w.wantsDown
	w.mu.Unlock()
	if e != nil {
		e.settle(true, true)
	}
}

// shutdownCondition is the condition of a pod that a shutdown has ended.
func shutdownCondition(generation int64) corev1.PodCondition {
	return corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: generation,
		Reason: corev1.PodReasonTerminationByKubelet, Message: messageTerminated,
	}
}
