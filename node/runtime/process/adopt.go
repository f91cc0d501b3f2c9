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
	if s.Isolation == None && rec.PID > 1 {
		killSession(rec.PID, rec.StartedAt)
	}
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

// killSession kills the processes of a session whose leader was pid and started
// at that time, as long as the number is not another's by now.
func killSession(pid int, at time.Time) {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return
	}
	boot := time.Now().Add(-time.Duration(si.Uptime) * time.Second)
	for _, p := range processes("/proc") {
		born := boot.Add(time.Duration(p.start) * time.Duration(nanosPerTick))
		// The uptime is in whole seconds.
		if p.session == pid && born.After(at.Add(-5*time.Second)) {
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
	}
}

// adoptAll finds the containers that earlier processes left.
func (r *Runtime) adoptAll(ctx context.Context) error {
	entries, err := os.ReadDir(r.containersDir())
	if err != nil {
		return fmt.Errorf("look for containers: %w", err)
	}
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
	var s spec
	err := readJSON(filepath.Join(dir, specName), &s)
	if errors.Is(err, fs.ErrNotExist) {
		return removeContainer(&spec{Dir: dir}) // not even asked for completely
	}
	if err != nil {
		return err
	}
	s.Dir = dir
	held, err := lock(dir)
	if errors.Is(err, errLocked) {
		return r.adoptLive(ctx, &s)
	}
	if err != nil {
		return err
	}
	defer held.Close()
	if _, err := os.Stat(filepath.Join(dir, statusName)); errors.Is(err, fs.ErrNotExist) {
		return removeContainer(&s) // it never ran
	}
	r.adoptDead(&s)
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
