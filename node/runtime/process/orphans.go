package process

// Ending containers that run and cannot be adopted, because their files are lost.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// adoptUnknown ends the container in dir if it runs: its spec is lost, so that another would be
// started beside it. cause is the error of reading the spec. It touches nothing if the file system
// failed: the spec may be readable later.
func (r *Runtime) adoptUnknown(ctx context.Context, dir string, cause error) error {
	var errno unix.Errno
	if errors.As(cause, &errno) && errno != unix.ENOENT {
		return cause
	}
	id := filepath.Base(dir)
	// Which isolation the container has is not known. Without any, its processes are looked for.
	s := &spec{ID: id, Dir: dir, Isolation: None}
	live, err := isLocked(dir)
	if err != nil {
		return err
	}
	if live || len(shimsOf(id)) > 0 {
		r.log.Warn("ending a container whose spec is lost", "container", id, "err", cause)
		if err := killShims(ctx, dir); err != nil {
			return err
		}
	} else if !errors.Is(cause, fs.ErrNotExist) {
		return cause
	}
	if r.cgroups != nil {
		s.Cgroup = r.cgroups.find(id)
	}
	s.killStarted()
	defer s.Cgroup.parents().tryRemove()
	return removeContainer(s)
}

// hasShim reports whether the shim of a container whose lock is free runs: the lock was removed, or
// the container's directory is a copy.
func hasShim(s *spec) bool {
	var rec record
	if err := readJSON(filepath.Join(s.Dir, statusName), &rec); err != nil || rec.State != runtime.Running {
		return false
	}
	now, err := statOf(rec.ShimPID)
	return err == nil && rec.ShimPID > 1 && rec.sameBoot() && now.Starttime == rec.ShimStart && now.State != zombie &&
		max(s.Version, rec.Version) <= version // followLock needs the lock
}

// adoptUnlocked adopts a container whose shim runs without its lock, or ends it.
func (r *Runtime) adoptUnlocked(s *spec) {
	conn, rec, err := watchShim(s.Dir)
	if err == nil {
		r.adoptWatched(s, conn, *rec)
		return
	}
	r.log.Warn("killing a shim that has neither its lock nor its socket", "container", s.ID, "err", err)
	for _, p := range shimsOf(s.ID) {
		killProcess(p)
	}
	r.adoptDead(s)
}

// shimsOf finds the living shims of a container by their command lines. There is one at most,
// unless a process has taken its name.
func shimsOf(id string) (shims []procfs.ProcStat) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil
	}
	for _, p := range all {
		if line, err := p.CmdLine(); err != nil || len(line) < 2 || line[0] != shimName || line[1] != id {
			continue
		}
		if st, err := p.Stat(); err == nil && st.State != zombie {
			shims = append(shims, st)
		}
	}
	return shims
}

// killShims kills the shim of the container in dir and waits for its end.
func killShims(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	for {
		shims := shimsOf(filepath.Base(dir))
		for _, p := range shims {
			killProcess(p)
		}
		live, err := isLocked(dir)
		if err != nil || !live && len(shims) == 0 {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the shim of container %s does not end", filepath.Base(dir))
		}
	}
}

// lostCheck is how often a shim looks whether its directory was removed, and lostGrace how long its
// container then may take to end.
const (
	lostCheck = 5 * time.Second
	lostGrace = 10 * time.Second
)

// openLinked opens a directory whose removal links will show. It returns nil if there is none, or if
// its file system does not count links.
func openLinked(dir string) *os.File {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	if links(f) == 0 {
		_ = f.Close()
		return nil
	}
	return f
}

// links is how many names an open file has: none once it was removed. It is 1 if that is not known.
func links(f *os.File) uint64 {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 1
	}
	return uint64(st.Nlink) //nolint:unconvert // its type is not the same on all machines
}

// endStrangers kills what runs in a pod's group and is of no container that this runtime knows: its
// files were lost. It does so once for each making of the pod's group, before this runtime starts
// a container in it.
func (r *Runtime) endStrangers(uid string, pod cgroupDirs) {
	if r.searched[uid] {
		return
	}
	r.searched[uid] = true
	strangers := map[string]cgroupDirs{}
	for k, dir := range pod {
		children, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range children {
			if id := e.Name(); e.IsDir() && !r.knows(id) {
				if strangers[id] == nil {
					strangers[id] = cgroupDirs{}
				}
				strangers[id][k] = filepath.Join(dir, id)
			}
		}
	}
	for id, dirs := range strangers {
		r.log.Warn("ending a container whose files are lost", "container", id)
		dirs.kill()
		dirs.remove()
	}
}

// knows reports whether the runtime has the container.
func (r *Runtime) knows(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.containers[id] != nil
}

// find finds the group of a container whose pod is not known.
func (c *cgroups) find(id string) cgroupDirs {
	found := cgroupDirs{}
	for k, base := range c.base {
		pods, err := os.ReadDir(base)
		if err != nil {
			continue
		}
		for _, pod := range pods {
			dir := filepath.Join(base, pod.Name(), id)
			if info, err := os.Stat(dir); err == nil && info.IsDir() && strings.HasPrefix(pod.Name(), podPrefix) {
				found[k] = dir
			}
		}
	}
	return found
}

// parents are the groups in which the groups d are.
func (d cgroupDirs) parents() cgroupDirs {
	dirs := cgroupDirs{}
	for k, dir := range d {
		dirs[k] = filepath.Dir(dir)
	}
	return dirs
}
