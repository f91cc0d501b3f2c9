// This file is what a worker knows of each container.

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

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

// A container is what is known of one container of a pod beside what the runtime
// keeps. Its worker's loop owns it.
type container struct {
	// lost is an attempt that the runtime does not know: one that could not be
	// started, or one that an earlier run of the agent told of.
	lost *runtime.ContainerStatus
	// before is the status an earlier run of the agent has left, until the
	// container's state has been taken from it.
	before *corev1.ContainerStatus

	startCancel context.CancelFunc // not nil while being started
	stopCancel  context.CancelFunc // not nil while being stopped
	stopBy      time.Time
	stopAfter   time.Time // a stop that failed is not tried again before
	hooked      string    // the attempt whose preStop hook has been run
	told        string    // the attempt whose killing has been told in an event

	delay     time.Duration // of the next restart
	backedOff int           // the attempt whose back-off has been told
	blocked   *blocked

	// Of the attempt with that id:
	id             string
	started, ready bool
	unhealthy      string
	grace          *time.Duration
	probeCancel    context.CancelFunc

	// messages are what attempts have left to say, by id.
	messages map[string]string
}

// container returns the record of a container, making it.
func (w *worker) container(name string) *container {
	c := w.containers[name]
	if c == nil {
		c = &container{backedOff: -1}
		w.containers[name] = c
	}
	return c
}

// abandon stops what is being done to have the container run.
func (c *container) abandon() {
	if c.startCancel != nil {
		c.startCancel()
	}
	c.unprobe()
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
	// What runs without being in the spec is what is left of a pod not known any
	// more; it only ever has to be stopped.
	for name, list := range attempts {
		add(&corev1.Container{Name: name, Image: list[0].Image}, ephemeral)
	}
}

// fact puts together what the runtime says of a container and what is known here.
// list has its attempts, newest first.
func (w *worker) fact(now time.Time, spec *corev1.Container, k kind, list []*runtime.ContainerStatus) fact {
	c := w.container(spec.Name)
	f := fact{spec: spec, kind: k, blocked: c.blocked, starting: c.startCancel != nil}
	list = withLost(list, c.lost)
	if len(list) > 0 {
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
		if f.exited() && (f.newest.StartedAt.IsZero() || f.newest.EndedAt.Sub(f.newest.StartedAt) < w.r.cfg.CrashReset) {
			f.delay = c.delay
		}
		return f
	}
	if c.id != f.newest.ID {
		c.adopt(spec, f.newest, w.r.runtimeName)
	}
	if c.probeCancel == nil && w.kill == nil && !f.starting {
		w.probe(spec, c, f.newest)
	}
	f.started, f.ready, f.unhealthy, f.grace = c.started, c.ready, c.unhealthy, c.grace
	return f
}

// withLost adds an attempt that the runtime does not know to those it knows.
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

// adopt begins to know a running attempt. One that an earlier run of the agent has
// found started and ready is so still, until a probe says otherwise.
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

// withMessage returns the attempt with what it has left to say, once it has ended.
func (w *worker) withMessage(c *container, spec *corev1.Container, a *runtime.ContainerStatus) *runtime.ContainerStatus {
	if a.State != runtime.Exited || a.ID == "" {
		return a
	}
	message, known := c.messages[a.ID]
	if !known {
		if len(c.messages) > 2 || c.messages == nil { // only the last two attempts are asked for
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
	data, err := readTail(w.r.places.terminationLog(w.id.UID, a.Name, a.Attempt), maxTermination, false)
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return fmt.Sprintf("Error reading termination log: %v", err)
	case len(data) > 0:
		return string(data)
	case spec.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError || a.ExitCode == 0:
		return ""
	}
	// A line of a log has up to 50 characters before the text.
	data, err = readTail(a.LogPath, maxTerminationLog+maxTerminationRow*50, true)
	if err != nil {
		return ""
	}
	lines := logText(string(data))
	text := strings.Join(lines[max(0, len(lines)-maxTerminationRow):], "")
	return text[max(0, len(text)-maxTerminationLog):]
}

// logText takes the text from lines of a log in CRI format: time, stream, F or P
// for a full or a partial line, text. What is not of that form is left out.
func logText(data string) []string {
	var lines []string
	for line := range strings.Lines(data) {
		parts := strings.SplitN(line, " ", 4)
		if len(parts) != 4 || len(parts[2]) != 1 {
			continue
		}
		if parts[2] == "P" {
			parts[3] = strings.TrimSuffix(parts[3], "\n")
		}
		lines = append(lines, parts[3])
	}
	return lines
}

// readTail reads at most n bytes of a file, the first or the last ones.
func readTail(path string, n int64, last bool) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // of the data directory
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if last {
		if info, err := f.Stat(); err == nil && info.Size() > n {
			if _, err := f.Seek(-n, io.SeekEnd); err != nil {
				return nil, err
			}
		}
	}
	return io.ReadAll(io.LimitReader(f, n))
}
