// This file carries out decisions: tasks that prepare, start and stop.

package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/downward"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/volumes"
)

// event records an event about a container, or about the pod if spec is nil.
func (w *worker) event(spec *corev1.Container, eventType, reason, message string) {
	ref := w.ref
	if spec != nil {
		field := "containers"
		if w.isInit[spec.Name] {
			field = "initContainers"
		}
		ref.FieldPath = fmt.Sprintf("spec.%s{%s}", field, spec.Name)
	}
	w.r.cfg.Events.Event(ref, eventType, reason, message)
}

// act carries an intent out.
func (w *worker) act(s situation, in intent) {
	for _, st := range in.stop {
		c := w.container(st.spec.Name)
		if c.stopCancel != nil {
			c.hurry(st.by)
			continue
		}
		w.stop(c, st)
	}
	for _, f := range in.turn {
		w.container(f.spec.Name).giveTurn()
	}
	for i := range s.facts {
		if f := &s.facts[i]; !f.running() {
			w.container(f.spec.Name).giveTurn() // it has ended by itself, and its stop ends too
		}
	}
	if w.kill != nil || in.finished {
		return
	}
	w.prepare(s.now)
	for i := range s.facts {
		f := &s.facts[i]
		wait, waits := in.waiting[f.spec.Name]
		c := w.container(f.spec.Name)
		if waits && wait.reason == "CrashLoopBackOff" && c.backedOff != f.newest.Attempt {
			c.backedOff = f.newest.Attempt
			w.event(f.spec, corev1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)",
				f.spec.Name, w.id.Name, w.id.Namespace, w.id.UID))
		}
	}
	if in.start != nil && w.volumesMade() && !w.early(s.now) && w.undisturbed() {
		w.start(in.start)
	}
}

// early reports whether it is too early to start containers, because the pod is known
// from its checkpoint only: it may have been moved to another node while this one was
// disconnected.
func (w *worker) early(now time.Time) bool {
	if w.static || w.apiKnown || !now.Before(w.r.patience) {
		return false
	}
	w.at(w.r.patience)
	return true
}

// facts about the pod for the downward API.
func (w *worker) downward() downward.Facts {
	a := w.surroundings()
	f := downward.Facts{NodeName: w.r.cfg.NodeName, PodIPs: a.podIPs, HostIPs: a.hostIPs}
	if w.r.cfg.Node != nil {
		if node := w.r.cfg.Node(); node != nil {
			w.allocatable = node.Status.Allocatable
			f.Memory = node.Status.Capacity.Memory().Value()
		}
	}
	f.Allocatable = w.allocatable
	if f.Memory == 0 {
		f.Memory = w.allocatable.Memory().Value() // near enough
	}
	return f
}

// volumesMade reports whether it was tried to make volumes since the last ephemeral container was
// added: it may need mount points in them.
func (w *worker) volumesMade() bool {
	return w.sandbox.ephemeral >= len(w.pod.Spec.EphemeralContainers)
}

// prepare makes volumes and sandbox, and refreshes the volumes later.
func (w *worker) prepare(now time.Time) {
	p := &w.sandbox
	due := p.at
	made := w.volumesMade()
	if p.done && made && !p.lacks {
		due = p.refreshAt
	}
	if p.busy {
		return
	}
	if due.After(now) {
		w.at(due)
		return
	}
	p.busy = true
	pod, facts, again := w.pod, w.downward(), p.done
	w.task(func() func() {
		err := w.volumes.Setup(w.ctx, pod, facts)
		kept := w.inputs.save()
		var st runtime.SandboxStatus
		if err == nil && !again {
			st, err = w.r.cfg.Runtime.EnsureSandbox(w.ctx, runtime.Sandbox{
				Pod: w.id, Hostname: hostname(pod), LogDir: w.r.places.podLogs(w.id),
				Limits: podResources(pod, w.r.cfg.PodMaxPIDs),
			})
		}
		return func() {
			w.logInputs(kept)
			p.ephemeral = len(pod.Spec.EphemeralContainers)
			p.lacks = err != nil && (p.lacks || !made)
			w.preparedWith(st, err)
		}
	})
}

// logInputs logs once that the inputs of containers could not be written to disk.
func (w *worker) logInputs(err error) {
	if err != nil && !w.unkept { // the error may have the name of a temporary file
		w.log.Warn("what the pod's containers are made from is not kept on disk: after a restart without a server they cannot be started again", "err", err)
	}
	w.unkept = err != nil
}

func (w *worker) preparedWith(st runtime.SandboxStatus, err error) {
	p, now := &w.sandbox, time.Now()
	p.busy, p.tried = false, true
	// The period is random by half, so that pods do not all read at the same time.
	p.refreshAt = now.Add(jitter(w.r.cfg.VolumeRefresh))
	if err == nil {
		if !p.done {
			p.ips = st.IPs
		}
		p.done = true
		p.succeeded()
		return
	}
	if w.ctx.Err() != nil || w.kill != nil {
		return
	}
	p.failed(now, w.r.cfg.RetryDelay)
	failures := unjoin(err)
	for _, err := range failures {
		var setup *volumes.SetupError
		if errors.As(err, &setup) {
			w.event(nil, corev1.EventTypeWarning, "FailedMount", setup.Error())
		} else {
			w.event(nil, corev1.EventTypeWarning, "FailedCreatePodSandBox", fmt.Sprintf("Failed to create pod sandbox: %v", err))
		}
	}
	w.log.Debug("pod cannot be prepared, will try again", "err", err, "in", p.delay)
}

// unjoin lists the errors that errors.Join has joined.
func unjoin(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}

// start starts the next attempt of a container and runs its postStart hook.
func (w *worker) start(f *fact) {
	c := w.container(f.spec.Name)
	next := 0
	if f.newest != nil {
		next = f.newest.Attempt + 1
	}
	ctx, cancel := context.WithCancel(w.ctx)
	c.startCancel = cancel
	pod, spec, ips, facts, delay := w.pod, f.spec, w.sandbox.ips, w.downward(), w.nextDelay(f, c.delay)
	w.task(func() func() {
		res := w.startAttempt(ctx, pod, spec, next, ips, facts)
		return func() {
			cancelled := ctx.Err() != nil
			w.logInputs(res.kept)
			cancel()
			c.startCancel = nil
			w.startedWith(spec, c, next, delay, res, cancelled)
		}
	})
}

// nextDelay is the back-off of the restart after the next start: none after the first
// start, then doubled each time, until an attempt has run for long enough.
func (w *worker) nextDelay(f *fact, delay time.Duration) time.Duration {
	switch {
	case f.newest == nil:
		return 0
	case f.delay == 0:
		return w.r.cfg.CrashDelay
	}
	return min(2*delay, w.r.cfg.MaxCrashDelay)
}

// A startResult is the result of a start. At most one of its errors is set.
type startResult struct {
	config, start, hook error
	id                  string
	kept                error // of writing the inputs; it does not stop the start
}

func (w *worker) startAttempt(ctx context.Context, pod *corev1.Pod, spec *corev1.Container, attempt int, ips []string, facts downward.Facts) startResult {
	c, err := w.assemble(ctx, pod, spec, attempt, facts)
	kept := w.inputs.save()
	if err == nil {
		err = prepareFiles(&c)
	}
	if err != nil {
		return startResult{config: err, kept: kept}
	}
	if err = w.prune(ctx, spec.Name, attempt); err != nil {
		w.log.Warn("cannot remove an attempt that has ended, will try again", "err", err)
	}
	if attempt == 0 {
		w.event(spec, corev1.EventTypeNormal, "Pulled", fmt.Sprintf(
			"Container image %q is recorded and not pulled: runtime %s runs commands of this machine", spec.Image, w.r.runtimeName))
	}
	id, err := w.r.cfg.Runtime.Start(ctx, c)
	if err != nil {
		return startResult{start: err, kept: kept}
	}
	w.event(spec, corev1.EventTypeNormal, "Created", "Created container: "+spec.Name)
	w.event(spec, corev1.EventTypeNormal, "Started", "Started container "+spec.Name)
	if spec.Lifecycle != nil && spec.Lifecycle.PostStart != nil {
		if err := w.hook(ctx, ips, spec, id, spec.Lifecycle.PostStart); err != nil {
			return startResult{id: id, hook: err, kept: kept}
		}
	}
	return startResult{id: id, kept: kept}
}

func (w *worker) startedWith(spec *corev1.Container, c *container, next int, delay time.Duration, res startResult, cancelled bool) {
	now := time.Now()
	starts := w.r.cfg.Metrics.starts
	switch {
	case res.hook != nil:
		if cancelled {
			return
		}
		c.delay, c.blocked = delay, nil
		c.id, c.started, c.unhealthy = res.id, false, postStartHook
		w.event(spec, corev1.EventTypeWarning, "FailedPostStartHook", res.hook.Error())
		starts.WithLabelValues("failed").Inc()
	case res.id != "":
		c.delay, c.blocked = delay, nil
		starts.WithLabelValues("ok").Inc()
	case cancelled:
	case res.config != nil:
		starts.WithLabelValues("misconfigured").Inc()
		w.event(spec, corev1.EventTypeWarning, "Failed", "Error: "+res.config.Error())
		c.blocked = &blocked{reason: reasonConfigError, message: res.config.Error(), until: now.Add(w.r.cfg.RetryDelay)}
	default:
		starts.WithLabelValues("failed").Inc()
		w.event(spec, corev1.EventTypeWarning, "Failed", "Error: "+res.start.Error())
		c.delay, c.blocked = delay, nil
		c.lost = &runtime.ContainerStatus{
			Pod: w.id, Name: spec.Name, Attempt: next, Image: spec.Image, State: runtime.Exited,
			StartedAt: now, EndedAt: now, ExitCode: 128, Reason: reasonStartError, Message: res.start.Error(),
		}
	}
}

// stop runs the container's preStop hook, waits for the container's turn, and stops it. The hook
// and the wait end at c.stopBy.
func (w *worker) stop(c *container, st stop) {
	ctx, cancel := context.WithCancel(w.ctx)
	hctx, late := context.WithCancelCause(ctx)
	timer, turn := time.AfterFunc(time.Until(st.by), func() { late(context.DeadlineExceeded) }), make(chan struct{})
	c.stopCancel, c.stopBy, c.stopTimer, c.turn = cancel, st.by, timer, turn
	ips, id, spec := w.sandbox.ips, st.newest.ID, st.spec
	if c.told != id {
		c.told = id
		w.event(spec, corev1.EventTypeNormal, "Killing", st.reason)
	}
	hook := c.hooked != id && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil
	c.hooked = id
	if st.replaces {
		c.replaced = id
	}
	w.task(func() func() {
		if hook {
			if err := w.hook(hctx, ips, spec, id, spec.Lifecycle.PreStop); err != nil && ctx.Err() == nil {
				w.event(spec, corev1.EventTypeWarning, "FailedPreStopHook", err.Error())
			}
		}
		select {
		case <-turn:
		case <-hctx.Done():
		}
		timer.Stop()
		late(nil)
		return func() { w.terminate(ctx, c, id, spec.Name) }
	})
}

// terminate stops the container, whose preStop hook has been run.
func (w *worker) terminate(ctx context.Context, c *container, id, name string) {
	c.stopTimer, c.turn = nil, nil
	by := c.stopBy
	w.task(func() func() {
		err := ctx.Err()
		if err == nil {
			err = w.r.cfg.Runtime.Stop(ctx, id, max(time.Until(by), minGrace))
		}
		return func() {
			c.stopCancel()
			c.stopCancel = nil
			if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, runtime.ErrNotFound) {
				w.log.Warn("cannot stop container, will try again", "container", name, "err", err)
				c.stopAfter = time.Now().Add(time.Second)
			}
		}
	})
}

// hurry moves the deadline of the container's stop forward. If the runtime is stopping the
// container already, the container is stopped again.
func (c *container) hurry(by time.Time) {
	if c.stopTimer == nil {
		c.stopCancel()
		return
	}
	c.stopBy = by
	c.stopTimer.Reset(time.Until(by))
}
