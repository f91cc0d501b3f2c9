package process

// Operations on containers and pods.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// find returns a container by its id.
func (r *Runtime) find(ctx context.Context, id string) (*container, error) {
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
	}
	return c, nil
}

// live returns a running container.
func (r *Runtime) live(ctx context.Context, id string) (*container, error) {
	c, err := r.find(ctx, id)
	switch {
	case err != nil:
	case c.isOver():
		return nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotRunning)
	case c.newer:
		return nil, c.errNewer()
	}
	return c, err
}

// errNoConn says nothing of the shim. With errNoSocket it runs.
var (
	errNoConn   = errors.New("cannot connect to the shim")
	errNoSocket = errors.New("the socket of its shim was removed: it can only be stopped")
)

// ask sends the shim one request and returns its first answer. If nothing listens, the shim has
// ended.
func (c *container) ask(ctx context.Context, req request) (*reply, error) {
	conn, err := dialShim(c.spec.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !c.isOver():
		return nil, fmt.Errorf("container %s: %w", c.spec.ID, errNoSocket)
	case errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("container %s: %w", c.spec.ID, runtime.ErrNotRunning)
	case err != nil: // such as no descriptor
		return nil, fmt.Errorf("%w of %s: %w", errNoConn, c.spec.ID, err)
	}
	defer conn.hangUp()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	_ = conn.SetDeadline(time.Now().Add(replyTimeout))
	var rep reply
	err = conn.send(req)
	if err == nil {
		err = conn.recv(&rep)
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("ask shim of %s: %w", c.spec.ID, err)
	case rep.Failure != nil:
		return nil, fmt.Errorf("container %s: %w", c.spec.ID, rep.Failure.err())
	}
	return &rep, nil
}

// killMargin is how long a container may take to end after its grace period.
const killMargin = 30 * time.Second

// How often a busy shim is asked to end its container, and the time between.
const (
	stopTries = 20
	stopPause = 100 * time.Millisecond
)

// askStop asks the shim to end its container after grace. A shim that hangs up has too many
// connections, and is asked again.
func (c *container) askStop(ctx context.Context, grace time.Duration) error {
	tick := time.NewTicker(stopPause)
	defer tick.Stop()
	for try := 1; ; try++ {
		_, err := c.ask(ctx, request{Op: opStop, GraceMS: grace.Milliseconds()})
		if !hungUp(err) || try == stopTries {
			return err
		}
		select {
		case <-tick.C:
		case <-c.ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Stop ends a container; see runtime.Runtime.
func (r *Runtime) Stop(ctx context.Context, id string, grace time.Duration) error {
	c, err := r.find(ctx, id)
	if err != nil || c.isOver() {
		return err
	}
	if c.newer {
		return c.errNewer()
	}
	grace = max(grace, 0)
	err = c.askStop(ctx, grace)
	if ctx.Err() != nil {
		return fmt.Errorf("stop container %s: %w", id, context.Cause(ctx))
	}
	if errors.Is(err, errNoConn) {
		return fmt.Errorf("stop container %s: %w", id, err) // it has not been told to end
	}
	if errors.Is(err, runtime.ErrNotRunning) || errors.Is(err, errNoSocket) || hungUp(err) {
		// Nothing listens, or the shim is busy. One that has not ended is told by a signal.
		c.signalShim(unix.SIGTERM)
		defer time.AfterFunc(grace, c.killShim).Stop()
	} else if err != nil {
		// A shim that does not answer is killed, which ends the container.
		r.log.Warn("killing a shim that does not answer", "container", id, "err", err)
		c.killShim()
	}
	late := time.NewTimer(grace + killMargin)
	defer late.Stop()
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop container %s: %w", id, context.Cause(ctx))
	case <-r.done:
		return fmt.Errorf("stop container %s: the agent is ending", id)
	case <-late.C:
		return fmt.Errorf("stop container %s: it does not die", id)
	}
}

// killShim kills the shim of a container.
func (c *container) killShim() { c.signalShim(unix.SIGKILL) }

// signalShim signals the shim of a container, and no other process that has its number by now.
func (c *container) signalShim(sig unix.Signal) {
	c.mu.Lock()
	rec := c.record
	c.mu.Unlock()
	if rec.ShimPID > 1 {
		signalProcess(procfs.ProcStat{PID: rec.ShimPID, Starttime: rec.ShimStart}, sig)
	}
}

// Remove removes a container; see runtime.Runtime.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	c, err := r.find(ctx, id)
	if errors.Is(err, runtime.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if !c.isOver() {
		return fmt.Errorf("remove container %s: it is running", id)
	}
	if err := c.dismiss(ctx); err != nil {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	if err := removeContainer(c.spec); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.containers, id)
	r.mu.Unlock()
	r.dropPodGroup(c.spec.Container.Pod)
	r.changed(c.spec.Container.Pod)
	return nil
}

// dismiss ends the shim of a container that has ended. The shim may still be writing
// output to an attached client.
func (c *container) dismiss(ctx context.Context) error {
	select {
	case <-c.gone:
		return nil
	default:
	}
	c.killShim()
	late := time.NewTimer(replyTimeout)
	defer late.Stop()
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late.C:
		return errors.New("its shim does not end")
	}
}

// Containers lists all containers; see runtime.Runtime.
func (r *Runtime) Containers(ctx context.Context) ([]runtime.ContainerStatus, error) {
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]runtime.ContainerStatus, 0, len(r.containers))
	for _, c := range r.containers {
		list = append(list, c.status())
	}
	return list, nil
}

var errStopped = errors.New("process runtime: stopped")

// A watcher is one call of Watch.
type watcher struct {
	pending map[runtime.PodID]struct{} // guarded by Runtime.mu
	wake    chan struct{}
}

// changed notifies the watchers of a change of the pod's containers.
func (r *Runtime) changed(pod runtime.PodID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers {
		w.pending[pod] = struct{}{}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// Watch sends pods whose containers changed; see runtime.Runtime.
func (r *Runtime) Watch(ctx context.Context, ch chan<- runtime.PodID) error {
	w := &watcher{pending: make(map[runtime.PodID]struct{}), wake: make(chan struct{}, 1)}
	r.mu.Lock()
	r.watchers[w] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.watchers, w)
		r.mu.Unlock()
	}()
	if err := r.wait(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	r.mu.Lock()
	for _, c := range r.containers {
		w.pending[c.spec.Container.Pod] = struct{}{}
	}
	r.mu.Unlock()
	for {
		r.mu.Lock()
		pods := w.pending
		w.pending = make(map[runtime.PodID]struct{})
		r.mu.Unlock()
		for pod := range pods {
			select {
			case ch <- pod:
			case <-ctx.Done():
				return nil
			case <-r.done:
				return errStopped
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.done:
			return errStopped
		case <-w.wake:
		}
	}
}

// Resize sets the size of a container's terminal; see runtime.Runtime.
func (r *Runtime) Resize(ctx context.Context, id string, size runtime.Size) error {
	c, err := r.live(ctx, id)
	if err != nil {
		return err
	}
	_, err = c.ask(ctx, request{Op: opResize, Size: &size})
	return err
}

// Images lists the image names of the containers; see runtime.Runtime. There are no image
// files.
func (r *Runtime) Images(ctx context.Context) ([]runtime.Image, error) {
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	r.mu.Lock()
	for _, c := range r.containers {
		if name := c.spec.Container.Image; name != "" && !c.isOver() {
			names[name] = true
		}
	}
	r.mu.Unlock()
	list := make([]runtime.Image, 0, len(names))
	for name := range names {
		list = append(list, runtime.Image{Names: []string{name}})
	}
	return list, nil
}

// A sample is a reading of how much processor time a container has used.
type sample struct {
	at    time.Time
	nanos uint64
	rate  uint64
}

// Usage of a running container; see runtime.Runtime.
func (r *Runtime) Usage(ctx context.Context, id string) (runtime.Usage, error) {
	c, err := r.live(ctx, id)
	if err != nil {
		return runtime.Usage{}, err
	}
	u, ok := c.spec.Cgroup.usage()
	if !ok {
		rep, err := c.ask(ctx, request{Op: opStats})
		if err != nil {
			return runtime.Usage{}, err
		}
		if rep.Usage == nil {
			return runtime.Usage{}, errors.New("shim: unexpected answer")
		}
		u = *rep.Usage
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = c.last.next(u.Time, u.CPUNanos)
	u.SampledCPUNs = c.last.rate
	return u, nil
}

// next computes the sample after a new reading. If it is too close to the last one, the
// earlier rate stays.
func (s sample) next(at time.Time, nanos uint64) sample {
	span := at.Sub(s.at)
	switch {
	case s.at.IsZero():
		return sample{at: at, nanos: nanos}
	case span < time.Second:
		return s
	case nanos < s.nanos:
		return sample{at: at, nanos: nanos}
	}
	rate := float64(nanos-s.nanos) / span.Seconds()
	return sample{at: at, nanos: nanos, rate: uint64(rate)}
}
