package process

// Containers that run while their files, or the agent's, are lost.

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// held starts a container that ignores all signals but SIGKILL. The file that it returns ends when
// all processes of the container have ended.
func (g *rig) held(c runtime.Container, dir string) (string, *os.File) {
	g.t.Helper()
	fifo := filepath.Join(dir, "fifo-"+c.Name)
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		g.t.Fatal(err)
	}
	both, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	defer both.Close()
	c.Argv = []string{"/bin/sh", "-c", "trap '' TERM; exec 3>" + fifo + "; echo ready; while :; do sleep 0.1; done"}
	c.Mounts = []runtime.Mount{{HostPath: fifo, ContainerPath: fifo}}
	id := g.start(c)
	g.t.Cleanup(func() {
		for _, p := range shimsOf(id) { // only after a failure
			killProcess(p)
		}
	})
	g.waitLog(id, "ready")
	only, err := os.OpenFile(fifo, os.O_RDONLY, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = only.Close() })
	return id, only
}

// ends waits until all processes of a container of held have ended.
func (g *rig) ends(only *os.File) {
	g.t.Helper()
	_ = only.SetReadDeadline(time.Now().Add(30 * time.Second))
	if b, err := io.ReadAll(only); err != nil || len(b) != 0 {
		g.t.Errorf("processes are left: %q %v", b, err)
	}
}

// A container whose spec is lost cannot be adopted: it is ended, and its files and groups are
// removed. Else it would run beside the one that is started in its place.
func TestAdoptWithoutSpec(t *testing.T) {
	lose := map[string]func(dir string) error{
		"truncated": func(dir string) error { return os.Truncate(filepath.Join(dir, specName), 0) },
		"removed":   func(dir string) error { return os.Remove(filepath.Join(dir, specName)) },
		"all removed": func(dir string) error {
			for _, name := range []string{specName, statusName, lockName, sockName} {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		for name, f := range lose {
			t.Run(name, func(t *testing.T) {
				data, files := t.TempDir(), t.TempDir()
				first := newRig(t, Config{DataDir: data, Isolation: iso})
				id, only := first.held(first.container("c", ""), files)
				dir := filepath.Join(first.containersDir(), id)
				group := first.containers[id].spec.Cgroup
				first.stop()
				if err := f(dir); err != nil {
					t.Fatal(err)
				}
				second := newRig(t, Config{DataDir: data, Isolation: iso})
				if list, err := second.Containers(second.ctx); err != nil || len(list) != 0 {
					t.Errorf("containers %v, %v", list, err)
				}
				second.ends(only)
				for _, d := range append([]string{dir}, dirsOf(group)...) {
					if _, err := os.Stat(d); !os.IsNotExist(err) {
						t.Errorf("%s is left: %v", d, err)
					}
				}
			})
		}
	})
}

// A container whose spec cannot be read now, but is not lost, runs on: a later agent may read it.
func TestAdoptWithUnreadableSpec(t *testing.T) {
	data, files := t.TempDir(), t.TempDir()
	first := newRig(t, Config{DataDir: data, Isolation: None})
	id, only := first.held(first.container("c", ""), files)
	path := filepath.Join(first.containersDir(), id, specName)
	first.stop()
	if err := errors.Join(os.Rename(path, path+".away"), os.Symlink(path, path)); err != nil {
		t.Fatal(err)
	}
	newRig(t, Config{DataDir: data, Isolation: None}).stop()
	if len(shimsOf(id)) == 0 {
		t.Fatal("the container was ended")
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	third := newRig(t, Config{DataDir: data, Isolation: None})
	if st := third.status(id); st.State != runtime.Running {
		t.Errorf("status %+v", st)
	}
	third.clear()
	third.ends(only)
}

// dirsOf lists the directories of a container's groups and of its pod's.
func dirsOf(group cgroupDirs) (dirs []string) {
	for _, d := range group {
		dirs = append(dirs, d, filepath.Dir(d))
	}
	return dirs
}

// A container whose data directory was removed is ended by the start of the same pod's next one,
// which would not get its ports otherwise. The pod's other containers are not.
func TestStartEndsTheLost(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		data, files := t.TempDir(), t.TempDir()
		first := newRig(t, Config{DataDir: data, Isolation: iso})
		if first.cgroups == nil {
			t.Skip("no cgroup can be written")
		}
		_, only := first.held(first.container("c", ""), files)
		first.stop()
		if err := os.Rename(data, data+".old"); err != nil { // the shim does not notice
			t.Fatal(err)
		}
		second := newRig(t, Config{DataDir: data, Isolation: iso})
		ids := []string{second.idle("c")}
		second.ends(only)
		ids = append(ids, second.idle("other"))
		for _, id := range ids {
			second.waitLog(id, "ready")
		}
		for _, id := range ids {
			if st := second.status(id); st.State != runtime.Running {
				t.Errorf("status %+v", st)
			}
		}
	})
}

// A shim whose directory is removed ends its container: no agent knows it any more. The lock alone
// does not matter.
func TestDirectoryRemoved(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		lost, only := g.held(g.container("lost", ""), t.TempDir())
		kept := g.idle("kept")
		if err := os.Remove(filepath.Join(g.containersDir(), kept, lockName)); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(g.containersDir(), lost)); err != nil {
			t.Fatal(err)
		}
		g.ends(only)
		g.waitGone(lost)
		if err := g.Remove(g.ctx, lost); err != nil {
			t.Error(err)
		}
		if st := g.status(kept); st.State != runtime.Running {
			t.Errorf("status %+v", st)
		}
	})
}

// A container whose socket was removed runs on. It is stopped within its grace period, and exec does
// not say that it has ended.
func TestSocketRemoved(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		polite := g.idle("polite")
		rude, only := g.held(g.container("rude", ""), t.TempDir())
		g.waitLog(polite, "ready")
		for _, id := range []string{polite, rude} {
			if err := os.Remove(filepath.Join(g.containersDir(), id, sockName)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := g.Exec(g.ctx, polite, []string{"true"}, runtime.Stdio{}); !errors.Is(err, errNoSocket) {
			t.Errorf("exec: %v", err)
		}
		if err := g.Stop(g.ctx, polite, patience); err != nil {
			t.Error(err)
		}
		if st := g.status(polite); st.ExitCode != 0 {
			t.Errorf("status %+v", st)
		}
		if err := g.Stop(g.ctx, rude, time.Second); err != nil {
			t.Error(err)
		}
		g.ends(only)
	})
}

// A container whose lock was removed is adopted by later agents: its shim lives.
func TestAdoptWithoutLock(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		id := g.idle("c")
		g.waitLog(id, "ready")
		before := g.status(id)
		if err := os.Remove(filepath.Join(g.containersDir(), id, lockName)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			g.stop()
			g = newRig(t, Config{DataDir: g.cfg.DataDir, Isolation: iso})
			if got := g.status(id); !sameStatus(got, before) {
				t.Errorf("before %+v\nafter  %+v", before, got)
			}
		}
		if err := g.Stop(g.ctx, id, patience); err != nil {
			t.Error(err)
		}
		if st := g.status(id); st.ExitCode != 0 {
			t.Errorf("status %+v", st)
		}
	})
}
