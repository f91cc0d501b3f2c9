// This file reads the state of an earlier run of the agent.

package pods

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

// recall reads checkpoints and containers of an earlier run. Files that cannot be read
// are set aside; the others are used.
func (r *Runner) recall(ctx context.Context) error {
	list, bad, err := r.places.loadCheckpoints()
	if err != nil {
		r.log.Warn("some pods were forgotten; they are taken up again once the server lists them", "err", err)
	}
	for _, d := range bad {
		r.log.Warn("a pod was forgotten, and is taken up again once the server lists it; its file was set aside", "file", d.path, "err", d.err)
	}
	for _, c := range list {
		path := r.places.inputs(c.Pod.UID)
		if c.inputs, err = loadInputs(path); err != nil {
			d := setAside(path, err)
			r.log.Warn("what a pod's containers are made from was forgotten, and is read again from the server; the file was set aside",
				"namespace", c.Pod.Namespace, "pod", c.Pod.Name, "file", d.path, "err", d.err)
		}
		r.known[c.Pod.UID] = c
	}
	if r.traces, err = r.trace(ctx); err != nil {
		return fmt.Errorf("list what the runtime runs: %w", err)
	}
	return nil
}

// trace lists the pods of which the runtime has containers or a sandbox. Pods are left
// out if all that it has is too young to be removed: there is nothing to do for them.
func (r *Runner) trace(ctx context.Context) (map[types.UID]runtime.PodID, error) {
	ids, err := r.cfg.Runtime.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	containers, err := r.lister.get(ctx)
	if err != nil {
		return nil, err
	}
	traces := map[types.UID]runtime.PodID{}
	for _, id := range ids {
		if id.UID != "" {
			traces[id.UID] = id
		}
	}
	for uid, list := range containers {
		if traces[uid] = list[0].Pod; r.onlyYoung(list) {
			delete(traces, uid)
		}
	}
	return traces, nil
}

// recover takes from the last status what the runtime may have lost: ended attempts, and
// that the pod has ended. Where the runtime knows nothing of the pod, it is begun again as after
// a reboot: what its init containers have prepared is gone with them.
func (w *worker) recover(traced bool) {
	if terminal(w.status.Phase) || terminal(w.api.Phase) {
		w.ended = true
		if !terminal(w.status.Phase) {
			w.status = *w.api.DeepCopy()
		}
	}
	for _, list := range [][]corev1.ContainerStatus{w.status.InitContainerStatuses, w.status.ContainerStatuses, w.status.EphemeralContainerStatuses} {
		for i := range list {
			cs := &list[i]
			c := w.container(cs.Name)
			c.before = cs
			c.lost = lostAttempt(w.id, cs)
			if c.recalled = c.lost; c.lost != nil {
				c.lost.Rebooted = !traced
				if cs.State.Waiting != nil {
					c.replaced = c.lost.ID // it was to run again
				}
			}
		}
	}
}

// lostAttempt is the newest attempt in a status. If it was running there, it counts as
// ended with an unknown result.
func lostAttempt(id runtime.PodID, cs *corev1.ContainerStatus) *runtime.ContainerStatus {
	a := &runtime.ContainerStatus{
		Pod: id, Name: cs.Name, Attempt: int(cs.RestartCount), Image: cs.Image, State: runtime.Exited,
	}
	t := cs.State.Terminated
	switch {
	case t != nil:
	case cs.State.Running != nil:
		t = lostState("The container could not be located when the agent was restarted").Terminated
		t.StartedAt = cs.State.Running.StartedAt
	case cs.LastTerminationState.Terminated != nil:
		t = cs.LastTerminationState.Terminated
	default:
		return nil
	}
	_, a.ID, _ = strings.Cut(t.ContainerID, "://")
	a.ExitCode, a.Reason, a.Message = int(t.ExitCode), t.Reason, t.Message
	a.StartedAt, a.EndedAt = t.StartedAt.Time, t.FinishedAt.Time
	if a.Reason == reasonCompleted || a.Reason == reasonError {
		a.Reason = ""
	}
	if a.OOMKilled = a.Reason == reasonOOMKilled; a.OOMKilled {
		a.Reason = ""
	}
	return a
}
