// Package memory is a container runtime that runs nothing.
//
// A Runtime keeps sandboxes and containers in memory. Tests start and end containers
// without processes, also in a synctest bubble. It implements the contract of package
// runtime, and it reports a breach of it by the caller: two changes of one container at
// the same time are an error in Violations.
package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hawser-project/hawser/node/runtime"
)

// A Behaviour is how a container started in memory behaves.
type Behaviour struct {
	// Err is returned by Start, and nothing is started.
	Err error
	// ExitAfter ends the container by itself; zero lets it run until it is stopped.
	ExitAfter time.Duration
	ExitCode  int
	OOMKilled bool
	// TermDelay is how long the container takes to end after SIGTERM. If it is longer than
	// the grace period the container is killed.
	TermDelay time.Duration
	// TermCode is the exit code after SIGTERM.
	TermCode int
	// Dir is that of the container's status.
	Dir string
}

// Options of a Runtime. The zero value makes containers that run until stopped.
type Options struct {
	// Start decides how each container behaves. It is called without locks held.
	Start func(c runtime.Container) Behaviour
	// Exec is what Exec does. Nil makes every command succeed without output.
	Exec func(ctx context.Context, c runtime.Container, argv []string, s runtime.Stdio) (int, error)
	// Dial is what DialPod, DialProbe and DialPodAt do. Nil refuses.
	Dial func(ctx context.Context, pod runtime.PodID, port uint16, also []netip.Addr) (net.Conn, error)
	// Images is what Images returns.
	Images []runtime.Image
	// SandboxIPs are the addresses of every sandbox.
	SandboxIPs []string
	// Namesakes allows containers of several pods of one name at the same time, which is
	// a breach otherwise.
	Namesakes bool
	// KeepNoCalls leaves Calls empty, for a Runtime that is used for long.
	KeepNoCalls bool
}

// Runtime is a runtime.Runtime in memory. Its methods may be called at the same time. Its
// containers go on when its user ends, as those of a real runtime do.
type Runtime struct {
	opts Options

	mu         sync.Mutex
	sandboxes  map[runtime.PodID]runtime.SandboxStatus
	containers map[string]*container
	watchers   map[*watcher]bool
	serial     int
	unhealthy  error
	violations []error
	calls      []string
}

type container struct {
	spec      runtime.Container
	status    runtime.ContainerStatus
	behaviour Behaviour
	ended     chan struct{}
	timer     *time.Timer
	changing  bool
}

type watcher struct {
	pending map[runtime.PodID]bool
	wake    chan struct{}
}

var _ runtime.Runtime = (*Runtime)(nil)

// New makes a Runtime without containers.
func New(o Options) *Runtime {
	return &Runtime{
		opts:       o,
		sandboxes:  map[runtime.PodID]runtime.SandboxStatus{},
		containers: map[string]*container{},
		watchers:   map[*watcher]bool{},
	}
}

// SetHealth makes Healthy return err.
func (r *Runtime) SetHealth(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unhealthy = err
}

// Violations returns the breaches of the runtime contract seen so far.
func (r *Runtime) Violations() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.violations...)
}

// Calls returns the calls so far, in order: "start POD/NAME#ATTEMPT", "stop
// POD/NAME#ATTEMPT GRACE", "remove POD/NAME#ATTEMPT".
func (r *Runtime) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// Specs returns the containers started and not removed, oldest first.
func (r *Runtime) Specs() []runtime.Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []runtime.Container
	for _, c := range r.sortedLocked() {
		list = append(list, c.spec)
	}
	return list
}

// Exit ends the running container of the pod with that name, as if its process
// had ended by itself. It reports whether there was one.
func (r *Runtime) Exit(pod, name string, code int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.spec.Pod.Name == pod && c.spec.Name == name && c.status.State == runtime.Running {
			r.endLocked(c, code, 0)
			return true
		}
	}
	return false
}

// Reboot ends all containers as a reboot of the machine does.
func (r *Runtime) Reboot() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		c.status.Rebooted = true
		r.endLocked(c, 137, 9)
	}
}

// Info implements runtime.Runtime.
func (r *Runtime) Info(context.Context) (runtime.Info, error) {
	return runtime.Info{Name: "memory", Version: "1", RecursiveReadOnly: true}, nil
}

// Healthy implements runtime.Runtime.
func (r *Runtime) Healthy(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unhealthy
}

// EnsureSandbox implements runtime.Runtime.
func (r *Runtime) EnsureSandbox(_ context.Context, s runtime.Sandbox) (runtime.SandboxStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st, ok := r.sandboxes[s.Pod]
	if !ok {
		st = runtime.SandboxStatus{IPs: slices.Clone(r.opts.SandboxIPs), CreatedAt: time.Now()}
		r.sandboxes[s.Pod] = st
	}
	return st, nil
}

// RemoveSandbox implements runtime.Runtime.
func (r *Runtime) RemoveSandbox(_ context.Context, id runtime.PodID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.spec.Pod == id {
			r.violations = append(r.violations, fmt.Errorf("sandbox %s removed before container %s", id, c.spec.Name))
		}
	}
	delete(r.sandboxes, id)
	return nil
}

// Sandboxes implements runtime.Runtime.
func (r *Runtime) Sandboxes(context.Context) ([]runtime.PodID, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.sandboxes)), nil
}

// Start implements runtime.Runtime.
func (r *Runtime) Start(_ context.Context, spec runtime.Container) (string, error) {
	var b Behaviour
	if r.opts.Start != nil {
		b = r.opts.Start(spec)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calledLocked("start " + label(spec))
	if _, ok := r.sandboxes[spec.Pod]; !ok {
		return "", fmt.Errorf("start container %s: sandbox: %w", spec.Name, runtime.ErrNotFound)
	}
	if b.Err != nil {
		return "", b.Err
	}
	r.checkStartLocked(spec)
	r.serial++
	now := time.Now()
	c := &container{spec: spec, behaviour: b, ended: make(chan struct{}), status: runtime.ContainerStatus{
		ID: "m" + strconv.Itoa(r.serial), Pod: spec.Pod, Name: spec.Name, Attempt: spec.Attempt, Image: spec.Image,
		State: runtime.Running, CreatedAt: now, StartedAt: now, LogPath: spec.LogPath, Dir: b.Dir,
	}}
	r.containers[c.status.ID] = c
	if b.ExitAfter > 0 {
		c.timer = time.AfterFunc(b.ExitAfter, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			c.status.OOMKilled = b.OOMKilled
			r.endLocked(c, b.ExitCode, 0)
		})
	}
	r.changedLocked(spec.Pod)
	return c.status.ID, nil
}

func (r *Runtime) calledLocked(call string) {
	if !r.opts.KeepNoCalls {
		r.calls = append(r.calls, call)
	}
}

func (r *Runtime) checkStartLocked(spec runtime.Container) {
	if len(spec.Argv) == 0 {
		r.violations = append(r.violations, fmt.Errorf("start %s: no command", label(spec)))
	}
	for _, c := range r.containers {
		if !r.opts.Namesakes && c.spec.Pod.NamespacedName == spec.Pod.NamespacedName && c.spec.Pod.UID != spec.Pod.UID && c.status.State == runtime.Running {
			r.violations = append(r.violations, fmt.Errorf("start %s while the pod of that name and uid %s runs", label(spec), c.spec.Pod.UID))
		}
		if c.spec.Pod != spec.Pod || c.spec.Name != spec.Name {
			continue
		}
		if c.status.State == runtime.Running {
			r.violations = append(r.violations, fmt.Errorf("start %s while %s runs", label(spec), label(c.spec)))
		}
		if c.spec.Attempt >= spec.Attempt {
			r.violations = append(r.violations, fmt.Errorf("start %s after %s", label(spec), label(c.spec)))
		}
	}
}

func label(c runtime.Container) string {
	return c.Pod.Name + "/" + c.Name + "#" + strconv.Itoa(c.Attempt)
}

// endLocked ends a running container; ending one that has ended does nothing.
func (r *Runtime) endLocked(c *container, code, signal int) {
	if c.status.State != runtime.Running {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.status.State = runtime.Exited
	c.status.EndedAt = time.Now()
	c.status.ExitCode = code
	c.status.Signal = signal
	close(c.ended)
	r.changedLocked(c.spec.Pod)
}

// Stop implements runtime.Runtime.
func (r *Runtime) Stop(ctx context.Context, id string, grace time.Duration) error {
	c, err := r.begin(id, func(c *container) string { return fmt.Sprintf("stop %s %s", label(c.spec), grace) })
	if err != nil {
		return err
	}
	defer r.finish(c)
	delay, code, signal := c.behaviour.TermDelay, c.behaviour.TermCode, 0
	if delay > grace || grace == 0 {
		delay, code, signal = grace, 137, 9
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-c.ended:
	case <-ctx.Done():
		return fmt.Errorf("stop container %s: %w", c.spec.Name, ctx.Err())
	case <-t.C:
		r.mu.Lock()
		r.endLocked(c, code, signal)
		r.mu.Unlock()
	}
	return nil
}

// begin marks a container as being changed.
func (r *Runtime) begin(id string, call func(*container) string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
	}
	r.calledLocked(call(c))
	if c.changing {
		r.violations = append(r.violations, fmt.Errorf("container %s changed twice at the same time", label(c.spec)))
	}
	c.changing = true
	return c, nil
}

func (r *Runtime) finish(c *container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.changing = false
}

// Remove implements runtime.Runtime.
func (r *Runtime) Remove(_ context.Context, id string) error {
	c, err := r.begin(id, func(c *container) string { return "remove " + label(c.spec) })
	if errors.Is(err, runtime.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	defer r.finish(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.status.State == runtime.Running {
		return fmt.Errorf("remove container %s: it is running", c.spec.Name)
	}
	delete(r.containers, id)
	r.changedLocked(c.spec.Pod)
	return nil
}

// Containers implements runtime.Runtime.
func (r *Runtime) Containers(context.Context) ([]runtime.ContainerStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []runtime.ContainerStatus
	for _, c := range r.sortedLocked() {
		list = append(list, c.status)
	}
	return list, nil
}

func (r *Runtime) sortedLocked() []*container {
	return slices.SortedFunc(maps.Values(r.containers), func(a, b *container) int {
		if c := a.status.CreatedAt.Compare(b.status.CreatedAt); c != 0 {
			return c
		}
		return len(a.status.ID) - len(b.status.ID)
	})
}

// Watch implements runtime.Runtime.
func (r *Runtime) Watch(ctx context.Context, ch chan<- runtime.PodID) error {
	w := &watcher{pending: map[runtime.PodID]bool{}, wake: make(chan struct{}, 1)}
	r.mu.Lock()
	r.watchers[w] = true
	for _, c := range r.containers {
		w.pending[c.spec.Pod] = true
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, w)
	}()
	for {
		r.mu.Lock()
		pending := slices.Collect(maps.Keys(w.pending))
		clear(w.pending)
		r.mu.Unlock()
		for _, id := range pending {
			select {
			case <-ctx.Done():
				return nil
			case ch <- id:
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
	}
}

func (r *Runtime) changedLocked(id runtime.PodID) {
	for w := range r.watchers {
		w.pending[id] = true
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// running returns a running container's spec.
func (r *Runtime) running(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
	}
	if c.status.State != runtime.Running {
		return nil, fmt.Errorf("container %s: %w", c.spec.Name, runtime.ErrNotRunning)
	}
	return c, nil
}

// Exec implements runtime.Runtime.
func (r *Runtime) Exec(ctx context.Context, id string, argv []string, s runtime.Stdio) (int, error) {
	c, err := r.running(id)
	if err != nil {
		return 0, err
	}
	if r.opts.Exec == nil {
		return 0, nil
	}
	return r.opts.Exec(ctx, c.spec, argv, s)
}

// Attach implements runtime.Runtime: it copies nothing and waits.
func (r *Runtime) Attach(ctx context.Context, id string, s runtime.Stdio) error {
	c, err := r.running(id)
	if err != nil {
		return err
	}
	if s.Out != nil {
		if _, err := io.WriteString(s.Out, "attached to "+label(c.spec)+"\n"); err != nil {
			return fmt.Errorf("attach to container %s: %w", c.spec.Name, err)
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ended:
		return nil
	}
}

// Resize implements runtime.Runtime.
func (r *Runtime) Resize(_ context.Context, id string, _ runtime.Size) error {
	_, err := r.running(id)
	return err
}

// DialPod implements runtime.Runtime.
func (r *Runtime) DialPod(ctx context.Context, id runtime.PodID, port uint16, _ bool) (net.Conn, error) {
	return r.DialProbe(ctx, id, port)
}

// DialProbe implements runtime.Runtime.
func (r *Runtime) DialProbe(ctx context.Context, id runtime.PodID, port uint16, also ...netip.Addr) (net.Conn, error) {
	if r.opts.Dial == nil {
		return nil, fmt.Errorf("dial port %d of pod %s: connection refused", port, id.Name)
	}
	return r.opts.Dial(ctx, id, port, also)
}

// DialPodAt implements runtime.Runtime.
func (r *Runtime) DialPodAt(ctx context.Context, id runtime.PodID, at netip.AddrPort) (net.Conn, error) {
	return r.DialProbe(ctx, id, at.Port(), at.Addr())
}

// Images implements runtime.Runtime.
func (r *Runtime) Images(context.Context) ([]runtime.Image, error) { return r.opts.Images, nil }

// Usage implements runtime.Runtime.
func (r *Runtime) Usage(_ context.Context, id string) (runtime.Usage, error) {
	if _, err := r.running(id); err != nil {
		return runtime.Usage{}, err
	}
	return runtime.Usage{Time: time.Now(), PIDs: 1}, nil
}
