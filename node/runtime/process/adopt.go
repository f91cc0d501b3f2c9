package process

// Finding the containers that earlier processes of the agent left, and what became
// of those whose shim is dead.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// lost finds out what became of a container whose shim is dead, and puts an end to
// what it may have left.
func lost(s *spec) record {
	var rec record
	path := filepath.Join(s.Dir, statusName)
	if err := readJSON(path, &rec); err == nil && rec.State == runtime.Exited {
		return rec
	}
	s.Cgroup.kill()
	killLeft(s, &rec)
	rec.State = runtime.Exited
	rec.StartedAt = cmp.Or(rec.StartedAt, s.CreatedAt)
	rec.EndedAt = time.Now()
	rec.ExitCode = 128 + int(unix.SIGKILL)
	rec.Signal = int(unix.SIGKILL)
	rec.Reason = "ContainerStatusUnknown"
	rec.Message = "The container could not be located when the pod was terminated: its supervisor was killed or the machine restarted"
	// If this cannot be written the next process will find out the same.
	_ = writeJSON(path, rec)
	return rec
}

// adoptAll finds the containers that earlier processes left.
func (r *Runtime) adoptAll(ctx context.Context) error {
	entries, err := os.ReadDir(r.containersDir())
	if err != nil {
		return fmt.Errorf("look for containers: %w", err)
	}
	defer r.tellNewer()
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.adopt(ctx, filepath.Join(r.containersDir(), e.Name())); err != nil {
			// One that cannot be understood must not keep the others from being
			// looked after.
			r.log.Error("container left behind cannot be adopted", "dir", e.Name(), "err", err)
		}
	}
	return nil
}

func (r *Runtime) adopt(ctx context.Context, dir string) error {
	s, err := readSpec(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return removeContainer(&spec{Dir: dir}) // not even asked for completely
	}
	if err != nil {
		return err
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
		return removeContainer(s) // it never ran
	}
	r.adoptDead(s)
	return nil
}

// adoptDead takes note of a container that has ended.
func (r *Runtime) adoptDead(s *spec) {
	c := newContainer(s, lost(s))
	s.Cgroup.remove()
	r.dropPodGroup(s.Container.Pod)
	close(c.gone)
	r.mu.Lock()
	r.containers[s.ID] = c
	r.mu.Unlock()
}

// adoptLive connects to a shim that lives.
func (r *Runtime) adoptLive(ctx context.Context, s *spec) error {
	conn, rec, err := watchShim(s.Dir)
	if err != nil {
		return r.adoptMute(ctx, s, err)
	}
	if rec.Version > version {
		_ = conn.Close()
		r.hold(s, *rec)
		return nil
	}
	c := newContainer(s, *rec)
	r.mu.Lock()
	r.containers[s.ID] = c
	r.mu.Unlock()
	if !r.spawn(func() { r.follow(c, conn, nil) }) {
		_ = conn.Close()
	}
	return nil
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

// adoptMute deals with a shim that lives and does not answer. Either the container
// has ended and the shim is about to, or it is stuck; it is ended then, because a
// container that cannot be stopped is worse than one that has.
func (r *Runtime) adoptMute(ctx context.Context, s *spec, cause error) error {
	var rec record
	if err := readJSON(filepath.Join(s.Dir, statusName), &rec); err != nil || rec.State != runtime.Exited {
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

// hold takes note of a running container whose shim speaks a later version than
// this agent. It is left alone until it has ended, or a later agent adopts it.
func (r *Runtime) hold(s *spec, rec record) {
	rec.State, rec.Version = runtime.Running, max(rec.Version, s.Version)
	rec.StartedAt = cmp.Or(rec.StartedAt, s.CreatedAt)
	c := newContainer(s, rec)
	c.newer = true
	r.mu.Lock()
	r.containers[s.ID] = c
	r.mu.Unlock()
	r.spawn(func() { r.followLock(c) })
}

// lockPoll is how often it is looked whether a container that is held has ended.
const lockPoll = time.Second

// followLock waits until the shim of a container that is held has let go of its
// lock, as it does when it ends, or for Run to end.
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

// tellNewer says, in one line, that containers are held.
func (r *Runtime) tellNewer() {
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

// errNewer is the answer to whatever is asked of a container that is held.
func (c *container) errNewer() error {
	return fmt.Errorf("container %s: a newer agent has started it (version %d, and this agent knows %d): upgrade the agent", c.spec.ID, c.startedBy(), version)
}

// startedBy is the version of the agent that has started the container.
func (c *container) startedBy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record.Version
}
