// This file has the state that a worker keeps of each container.

package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/crilog"
)

// A container is the state of one container of a pod that the runtime does not keep.
// Its worker's loop owns it.
type container struct {
	// lost is an attempt that the runtime does not have: it could not be started, or it
	// is in the status of an earlier run of the agent.
	lost *runtime.ContainerStatus
	// recalled is what lost was when the worker was made: of an earlier run of the agent.
	recalled *runtime.ContainerStatus
	// before is the status of an earlier run of the agent, until the container's state
	// is taken from it.
	before *corev1.ContainerStatus

	startCancel context.CancelFunc // not nil while being started
	stopCancel  context.CancelFunc // not nil while being stopped
	stopBy      time.Time
	stopTimer   *time.Timer   // ends the preStop hook and the wait for the turn at stopBy; nil if they are over
	turn        chan struct{} // closed when the container that is being stopped may get SIGTERM; nil if it is
	stopAfter   time.Time     // a failed stop is not tried again before this time
	hooked      string        // the attempt whose preStop hook has been run
	told        string        // the attempt of the last Killing event
	replaced    string        // the attempt that was stopped for another to follow

	// ended is when this run of the agent first saw that attempt endedAttempt has ended.
	ended        time.Time
	endedAttempt int

	delay     time.Duration // of the next restart
	backedOff int           // the attempt of the last BackOff event
	blocked   *blocked

	// Of the attempt with that id:
	id             string
	started, ready bool
	unhealthy      string
	grace          *time.Duration
	probeCancel    context.CancelFunc // ends its probes; nil while there are none
	calm           context.CancelFunc // ends those but readiness

	// messages are the termination messages of attempts, by id.
	messages map[string]string
}

// container returns the record of a container. It makes it if it is missing.
func (w *worker) container(name string) *container {
	c := w.containers[name]
	if c == nil {
		c = &container{backedOff: -1, endedAttempt: -1}
		w.containers[name] = c
	}
	return c
}

// knownEnd is since when it is known that the attempt has ended: since its end if an earlier run of
// the agent has recorded that, and else since this run first saw it.
func (c *container) knownEnd(now time.Time, a *runtime.ContainerStatus) time.Time {
	if b := c.before; b != nil && b.State.Terminated != nil && int(b.RestartCount) == a.Attempt {
		return a.EndedAt
	}
	if c.endedAttempt != a.Attempt {
		c.ended, c.endedAttempt = now, a.Attempt
	}
	return c.ended
}

// giveTurn lets the container, if it is being stopped, get SIGTERM.
func (c *container) giveTurn() {
	if c.turn != nil {
		close(c.turn)
		c.turn = nil
	}
}

func (c *container) unprobe() {
	if c.probeCancel != nil {
		c.probeCancel()
		c.probeCancel = nil
	}
}

// observe gathers the facts about the pod's containers.
func (w *worker) observe(now time.Time, listed []runtime.ContainerStatus) {
	attempts := map[string][]*runtime.ContainerStatus{}
	for i := range listed {
		attempts[listed[i].Name] = append(attempts[listed[i].Name], &listed[i])
	}
	w.facts = w.facts[:0]
	add := func(spec *corev1.Container, k kind) {
		w.facts = append(w.facts, w.fact(now, spec, k, attempts[spec.Name]))
		delete(attempts, spec.Name)
	}
	for i := range w.pod.Spec.InitContainers {
		c := &w.pod.Spec.InitContainers[i]
		k := initContainer
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			k = sidecar
		}
		add(c, k)
	}
	for i := range w.pod.Spec.Containers {
		add(&w.pod.Spec.Containers[i], mainContainer)
	}
	for i := range w.pod.Spec.EphemeralContainers {
		c := corev1.Container(w.pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		add(&c, ephemeral)
	}
	// Containers that are not in the spec are those of a pod whose spec is not known
	// any more. They are only stopped.
	for name, list := range attempts {
		add(&corev1.Container{Name: name, Image: list[0].Image}, ephemeral)
	}
}

// fact joins the runtime's state of a container and the worker's. list has its attempts,
// newest first.
func (w *worker) fact(now time.Time, spec *corev1.Container, k kind, list []*runtime.ContainerStatus) fact {
	c := w.container(spec.Name)
	f := fact{spec: spec, kind: k, blocked: c.blocked, starting: c.startCancel != nil}
	list = withLost(list, c.lost)
	if len(list) > 0 {
		f.recalled = list[0] == c.recalled
		f.newest = w.withMessage(c, spec, list[0])
	}
	if len(list) > 1 {
		f.previous = w.withMessage(c, spec, list[1])
	} else if b := c.before; b != nil && f.newest != nil && int(b.RestartCount) == f.newest.Attempt && b.LastTerminationState.Terminated != nil {
		last := *b
		last.State = corev1.ContainerState{}
		f.previous = lostAttempt(w.id, &last)
	}
	f.stopping = c.stopCancel != nil || c.stopAfter.After(now)
	f.stopBy = c.stopBy
	if c.stopAfter.After(now) {
		w.at(c.stopAfter)
	}
	if !f.running() {
		c.unprobe()
		if f.exited() {
			f.known = c.knownEnd(now, f.newest)
		}
		f.replaced = f.exited() && f.newest.ID != "" && c.replaced == f.newest.ID && !f.over(w.pod)
		if f.exited() && (f.newest.StartedAt.IsZero() || f.newest.EndedAt.Sub(f.newest.StartedAt) < w.r.cfg.CrashReset) {
			f.delay = c.delay
		}
		return f
	}
	if c.id != f.newest.ID {
		c.adopt(spec, f.newest, w.r.runtimeName)
	}
	ending := w.kill != nil || f.stopping || c.unhealthy != ""
	if c.probeCancel == nil && !f.starting {
		w.probe(spec, c, f.newest, ending)
	} else if ending && c.calm != nil {
		c.calm()
	}
	f.started, f.ready, f.unhealthy, f.grace = c.started, c.ready, c.unhealthy, c.grace
	return f
}

// withLost adds an attempt that the runtime does not have to those that it has.
func withLost(list []*runtime.ContainerStatus, lost *runtime.ContainerStatus) []*runtime.ContainerStatus {
	if lost == nil {
		return list
	}
	i, found := slices.BinarySearchFunc(list, lost.Attempt, func(a *runtime.ContainerStatus, n int) int { return n - a.Attempt })
	if found {
		return list
	}
	return slices.Insert(slices.Clone(list), i, lost)
}

// adopt makes the state of a running attempt. One that was started and ready for an
// earlier run of the agent stays so until a probe fails.
func (c *container) adopt(spec *corev1.Container, a *runtime.ContainerStatus, runtimeName string) {
	c.unprobe()
	c.id = a.ID
	c.unhealthy, c.grace = "", nil
	c.started, c.ready = spec.StartupProbe == nil, spec.ReadinessProbe == nil
	if b := c.before; b != nil && b.ContainerID == runtimeName+"://"+a.ID && b.Started != nil {
		c.started = c.started || *b.Started
		c.ready = c.ready || b.Ready
	}
}

// withMessage returns the attempt with its termination message, once it has ended.
func (w *worker) withMessage(c *container, spec *corev1.Container, a *runtime.ContainerStatus) *runtime.ContainerStatus {
	if a.State != runtime.Exited || a.ID == "" {
		return a
	}
	message, known := c.messages[a.ID]
	if !known {
		if len(c.messages) > 2 || c.messages == nil { // the status has only the last two attempts
			c.messages = map[string]string{}
		}
		message = w.terminationMessage(spec, a)
		c.messages[a.ID] = message
	}
	if message == "" {
		return a
	}
	b := *a
	b.Message = message
	return &b
}

// Bounds of a termination message: the most of a file, and the most of a log.
const (
	maxTermination    = 4096
	maxTerminationLog = 2048
	maxTerminationRow = 80
)

// terminationMessage reads the termination message of an attempt.
func (w *worker) terminationMessage(spec *corev1.Container, a *runtime.ContainerStatus) string {
	data, err := readTail(w.r.places.terminationLog(w.id.UID, a.Name, a.Attempt), maxTermination)
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return fmt.Sprintf("Error reading termination log: %v", err)
	case len(data) > 0:
		return utf8Text(data)
	case spec.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError || a.ExitCode == 0:
		return ""
	}
	text, err := lastText(context.WithoutCancel(w.ctx), a.LogPath)
	if err != nil {
		return ""
	}
	return utf8Text(text)
}

// lastText returns what a termination message has of a log.
func lastText(ctx context.Context, path string) ([]byte, error) {
	rows, text := int64(maxTerminationRow), lastBytes{}
	err := crilog.Read(ctx, path, crilog.Options{Tail: &rows}, &text, nil)
	return text, err
}

// lastBytes keeps the last maxTerminationLog bytes that are written to it.
type lastBytes []byte

// Write never fails.
func (l *lastBytes) Write(p []byte) (int, error) {
	last := p[max(0, len(p)-maxTerminationLog):]
	*l = append((*l)[max(0, len(*l)+len(last)-maxTerminationLog):], last...)
	return len(p), nil
}

// utf8Text returns data as the API keeps it. A character that is cut at the start or at the
// end is left out. Other bytes that are no UTF-8 are replaced by U+FFFD.
func utf8Text(data []byte) string {
	for i := 0; i < utf8.UTFMax-1 && len(data) > 0 && !utf8.RuneStart(data[0]); i++ {
		data = data[1:]
	}
	for i := 1; i < utf8.UTFMax && i <= len(data); i++ {
		if end := data[len(data)-i:]; utf8.RuneStart(end[0]) {
			if !utf8.FullRune(end) {
				data = data[:len(data)-i]
			}
			break
		}
	}
	return strings.ToValidUTF8(string(data), "\uFFFD")
}

// readTail reads at most n bytes of a file, the first or the last ones.
func readTail(path string, n int64) ([]byte, error) {
	f, err := crilog.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > n {
		if _, err := f.Seek(-n, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, n))
}
