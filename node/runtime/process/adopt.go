package process

// Adopting the containers of earlier processes of the agent, and recording the end of
// those whose shim is dead.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// lost completes the record of a container whose shim is dead, and kills its remaining
// processes.
func lost(s *spec) record {
	var rec record
	path := filepath.Join(s.Dir, statusName)
	if err := readJSON(path, &rec); err == nil && rec.State == runtime.Exited {
		return rec
	}
	s.Cgroup.kill()
	killRemaining(s, &rec)
	rec.State = runtime.Exited
	rec.StartedAt = cmp.Or(rec.StartedAt, s.CreatedAt)
	rec.EndedAt = time.Now()
	rec.ExitCode = 128 + int(unix.SIGKILL)
	rec.Signal = int(unix.SIGKILL)
	rec.Reason = "ContainerStatusUnknown"
	rec.Message = "The container could not be located when the pod was terminated: its supervisor was killed or the machine restarted"
	// If this cannot be written, the next process computes the same record.
	_ = writeRecord(path, rec)
	return rec
}

// adoptAll adopts the containers of earlier processes.
func (r *Runtime) adoptAll(ctx context.Context) error {
	entries, err := os.ReadDir(r.containersDir())
	if err != nil {
		return fmt.Errorf("look for containers: %w", err)
	}
	defer r.logHeld()
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.adopt(ctx, filepath.Join(r.containersDir(), e.Name())); err != nil {
			// A container that cannot be read must not prevent the adoption of the
			// others.
			r.log.Error("container left behind cannot be adopted", "dir", e.Name(), "err", err)
		}
	}
	return nil
}

func (r *Runtime) adopt(ctx context.Context, dir string) error {
	s, err := readSpec(dir)
	if err != nil {
		return r.adoptUnknown(ctx, dir, err)
	}
	held, err := lock(dir)
	switch {
	case !errors.Is(err, errLocked):
	case s.Version > version:
		r.hold(s, record{})
		return nil
	default:
		return r.adoptLive(ctx, s)
	}
	if err != nil {
		return err
	}
	defer held.Close()
	if _, err := os.Stat(filepath.Join(dir, statusName)); errors.Is(err, fs.ErrNotExist) {
		s.killStarted()
		return removeContainer(s) // its start was interrupted, or never begun
	}
	if hasShim(s) {
		r.adoptUnlocked(s)
	} else {
		r.adoptDead(s)
	}
	return nil
}

// adoptDead adopts a container that has ended.
func (r *Runtime) adoptDead(s *spec) {
	c := newContainer(s, lost(s))
	s.Cgroup.remove()
	r.dropPodGroup(s.Container.Pod)
	close(c.gone)
	r.mu.Lock()
	r.containers[s.ID] = c
	r.mu.Unlock()
}

// adoptLive connects to a live shim.
func (r *Runtime) adoptLive(ctx context.Context, s *spec) error {
	conn, rec, err := watchShim(s.Dir)
	if err != nil {
		return r.adoptUnresponsive(ctx, s, err)
	}
	if rec.Version > version {
		_ = conn.Close()
		r.hold(s, *rec)
		return nil
	}
	r.adoptWatched(s, conn, *rec)
	return nil
}

// adoptWatched adopts a running container whose shim answered on conn.
func (r *Runtime) adoptWatched(s *spec, conn *conn, rec record) {
	c := newContainer(s, rec)
	r.mu.Lock()
	r.containers[s.ID] = c
	r.mu.Unlock()
	if !r.spawn(func() { r.follow(c, conn, nil) }) {
		_ = conn.Close()
	}
}

func watchShim(dir string) (*conn, *record, error) {
	conn, err := dialShim(dir)
	if err != nil {
		return nil, nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(replyTimeout))
	var rep reply
	err = conn.send(request{Op: opWatch})
	if err == nil {
		err = conn.recv(&rep)
	}
	if err == nil && rep.Record == nil {
		err = errors.New("shim: unexpected answer")
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, rep.Record, nil
}

// adoptUnresponsive handles a live shim that gave no record. If the container has ended, the
// shim is about to end. Else a shim that hung up is busy, or ends: the container is followed
// by its lock. A shim that did not answer in time is stuck, and is killed with its
// container, because the container could not be stopped otherwise.
func (r *Runtime) adoptUnresponsive(ctx context.Context, s *spec, cause error) error {
	var rec record
	if err := readJSON(filepath.Join(s.Dir, statusName), &rec); err != nil || rec.State != runtime.Exited {
		if hungUp(cause) || rec.ShimPID == 0 {
			rec.State, rec.StartedAt = runtime.Running, cmp.Or(rec.StartedAt, s.CreatedAt)
			r.holdContainer(newContainer(s, rec))
			return nil
		}
		r.log.Warn("killing a shim that does not answer", "container", s.ID, "err", cause)
	}
	newContainer(s, rec).killShim()
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	for {
		held, err := lock(s.Dir)
		if err == nil {
			defer held.Close()
			r.adoptDead(s)
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("shim neither answers nor ends: %w", cause)
		}
	}
}

// hold records a running container whose shim has a later version than this agent. It is
// not touched until it has ended, or a later agent adopts it.
func (r *Runtime) hold(s *spec, rec record) {
	rec.State, rec.Version = runtime.Running, max(rec.Version, s.Version)
	rec.StartedAt = cmp.Or(rec.StartedAt, s.CreatedAt)
	c := newContainer(s, rec)
	c.newer = true
	r.holdContainer(c)
}

// holdContainer adds a running container and follows it by its lock.
func (r *Runtime) holdContainer(c *container) {
	r.mu.Lock()
	r.containers[c.spec.ID] = c
	r.mu.Unlock()
	r.spawn(func() { r.followLock(c) })
}

// hungUp reports whether err means that the other end closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// lockPoll is how often the lock of a held container is tried.
const lockPoll = time.Second

// followLock waits until the shim of a held container releases its lock, as it does when
// it ends, or until Run ends.
func (r *Runtime) followLock(c *container) {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		if held, err := lock(c.spec.Dir); err == nil {
			defer held.Close()
			r.end(c, lost(c.spec))
			c.spec.Cgroup.remove()
			r.dropPodGroup(c.spec.Container.Pod)
			close(c.gone)
			return
		}
		select {
		case <-tick.C:
		case <-r.done:
			return
		}
	}
}

// logHeld logs one line about the held containers.
func (r *Runtime) logHeld() {
	held, newest := 0, 0
	r.mu.Lock()
	for _, c := range r.containers {
		if c.newer {
			held, newest = held+1, max(newest, c.startedBy())
		}
	}
	r.mu.Unlock()
	if held > 0 {
		r.log.Error("containers that a newer agent has started are left running; they cannot be stopped or entered before the agent is upgraded again",
			"containers", held, "version", newest, "known", version)
	}
}

// errNewer is the error of all operations on a held container.
func (c *container) errNewer() error {
	return fmt.Errorf("container %s: a newer agent has started it (version %d, and this agent knows %d): upgrade the agent", c.spec.ID, c.startedBy(), version)
}

// startedBy is the version of the agent that has started the container.
func (c *container) startedBy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record.Version
}
