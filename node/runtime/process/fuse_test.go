package process

// A FUSE daemon that takes requests and does not answer.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// Of linux/fuse.h.
const (
	fuseForget      = 2
	fuseGetattr     = 3
	fuseInit        = 26
	fuseInterrupt   = 36
	fuseBatchForget = 42
)

// A fuse is a mounted file system with a root directory and nothing in it.
type fuse struct {
	fd    int
	dir   string
	hangs atomic.Bool   // requests are taken and not answered
	taken chan struct{} // gets a value for such a request, if there is room
}

// fuseMounts is set in a process that inOwnMounts has started.
const fuseMounts = "HAWSER_TEST_FUSE"

// inOwnMounts reports whether the test is in a mount namespace of its own. Else it runs the test in one:
// containers of other tests do not see a file system that does not answer, and it goes with the process.
func inOwnMounts(t *testing.T) bool {
	t.Helper()
	if os.Getenv(fuseMounts) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	goruntime.LockOSThread() // its end would be the process's
	defer goruntime.UnlockOSThread()
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), fuseMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"): // a subtest's is indented
		t.Skipf("SKIPPED:\n%s", out)
	}
	return false
}

// mountFUSE mounts one below the directory under, or if that is / directly in it.
func mountFUSE(t *testing.T, under string) *fuse {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("SKIPPED: no FUSE:", err)
	}
	top, err := os.MkdirTemp(under, "hawser-test-")
	dir := top
	if under != "/" {
		dir = filepath.Join(top, "user", "mount")
	}
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(top) }) // after the file system is gone
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		closeFD(fd)
		t.Skip("SKIPPED: FUSE cannot be mounted:", err)
	}
	if err := unix.Mount("hawser-test", dir, "fuse.test", unix.MS_NODEV|unix.MS_NOSUID, fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", fd)); err != nil {
		closeFD(fd)
		_ = os.Remove(dir)
		t.Skip("SKIPPED: FUSE cannot be mounted:", err)
	}
	f := &fuse{fd: fd, dir: dir, taken: make(chan struct{}, 1)}
	served := make(chan struct{})
	go func() { defer close(served); f.serve() }()
	guard := time.AfterFunc(2*patience, f.unmount)
	t.Cleanup(func() {
		if !guard.Stop() {
			t.Error("something waited for the file system until it was gone")
		}
		f.unmount()
		<-served
		closeFD(fd)
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return f
}

// unmount does so by force: requests that wait end.
func (f *fuse) unmount() {
	_ = unix.Unmount(f.dir, unix.MNT_FORCE)
	_ = unix.Unmount(f.dir, unix.MNT_DETACH)
}

// serve returns when the file system is unmounted.
func (f *fuse) serve() {
	b := make([]byte, 1<<17)
	for {
		n, err := unix.Read(f.fd, b)
		if err == unix.EINTR || err == unix.ENOENT {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		op, unique := binary.NativeEndian.Uint32(b[4:]), b[8:16]
		if op == fuseForget || op == fuseBatchForget || op == fuseInterrupt {
			continue
		}
		if op != fuseInit && f.hangs.Load() {
			select {
			case f.taken <- struct{}{}:
			default:
			}
			continue
		}
		errno, body := f.answer(op)
		head := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
		head = binary.NativeEndian.AppendUint32(head, uint32(-errno))
		if _, err := unix.Write(f.fd, append(append(head, unique...), body...)); err != nil && err != unix.ENOENT {
			return
		}
	}
}

func (f *fuse) answer(op uint32) (errno int, body []byte) {
	switch op {
	case fuseInit:
		body = make([]byte, 64)
		binary.NativeEndian.PutUint32(body, 7)
		binary.NativeEndian.PutUint32(body[4:], 31)
		binary.NativeEndian.PutUint32(body[20:], 1<<16) // max_write
		return 0, body
	case fuseGetattr: // valid for no time
		body = make([]byte, 16+88)
		binary.NativeEndian.PutUint64(body[16:], 1) // inode
		binary.NativeEndian.PutUint32(body[16+60:], unix.S_IFDIR|0o755)
		binary.NativeEndian.PutUint32(body[16+64:], 2) // links
		return 0, body
	}
	return int(unix.ENOENT), nil
}

// eachFUSE runs f with a file system that is mounted directly in / or further below, and each isolation.
func eachFUSE(t *testing.T, f func(t *testing.T, f *fuse, g *rig)) {
	t.Helper()
	if !inOwnMounts(t) {
		return
	}
	for _, under := range []string{"/", "/mnt"} { // not where tests have their files: containers do not see those
		t.Run(under, func(t *testing.T) {
			withNamespaces(t, func(t *testing.T, iso Isolation) {
				f(t, mountFUSE(t, under), newRig(t, Config{Isolation: iso}))
			})
		})
	}
}

// TestFUSEHangs: containers start, end and are removed while a file system of the machine does not
// answer.
func TestFUSEHangs(t *testing.T) {
	eachFUSE(t, func(t *testing.T, f *fuse, g *rig) {
		script := fmt.Sprintf("grep -c ' %s ' /proc/self/mountinfo; true", f.dir)
		for i, want := range []string{"1\n", "0\n", "0\n"} {
			c := g.container(fmt.Sprintf("c%d", i), script)
			f.hangs.Store(i > 0)
			id := g.start(c)
			g.wait(id)
			g.waitGone(id)
			if got := g.log(id); got != want {
				t.Errorf("container %d saw the file system %q times, want %q", i, got, want)
			}
			if err := g.Remove(g.ctx, id); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestVolumeBelowFUSE: a volume is mounted where the machine has a file system that does not answer.
func TestVolumeBelowFUSE(t *testing.T) {
	eachFUSE(t, func(t *testing.T, f *fuse, g *rig) {
		f.hangs.Store(true)
		at := filepath.Join(f.dir, "x")
		c := g.container("c", "cat "+at+"/file")
		c.Mounts = []runtime.Mount{{HostPath: t.TempDir(), ContainerPath: at}}
		write(t, filepath.Join(c.Mounts[0].HostPath, "file"), "text\n", 0o644)
		if got := g.output(c); got != "text\n" {
			t.Errorf("got %q", got)
		}
	})
}

// TestFUSEInLargeDirectory: a file system that does not answer is left out of a directory whose entries
// are too many to be mounted one by one.
func TestFUSEInLargeDirectory(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	if err := unix.Mount("tmpfs", "/mnt", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	f := mountFUSE(t, "/mnt")
	for i := range maxSpread {
		write(t, fmt.Sprintf("/mnt/%d", i), "", 0o644)
	}
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		f.hangs.Store(true)
		if got := g.output(g.container("c", "ls -A "+f.dir+"; test -f /mnt/0; echo $?")); got != "0\n" {
			t.Errorf("got %q", got)
		}
	})
}

// TestVolumeOfFUSE: the start of a container whose volume does not answer ends with its context, and
// leaves nothing.
func TestVolumeOfFUSE(t *testing.T) {
	eachFUSE(t, func(t *testing.T, f *fuse, g *rig) {
		f.hangs.Store(true)
		c := g.container("c", "true")
		c.Mounts = []runtime.Mount{{HostPath: filepath.Join(f.dir, "x"), ContainerPath: "/volume"}}
		ctx, cancel := context.WithCancel(g.ctx)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			_, err := g.Start(ctx, c)
			done <- err
		}()
		<-f.taken // by the process that asks whether it answers
		select {
		case <-f.taken: // by the shim
		case err := <-done:
			t.Fatal("it has ended before: ", err)
		}
		cancel()
		select {
		case err := <-done:
			if err == nil {
				t.Error("it has started")
			}
		case <-time.After(patience / 2):
			t.Error("its start does not end")
			f.unmount()
			<-done
		}
		if left, err := os.ReadDir(g.containersDir()); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	})
}

// TestReadOnlyRootBesideFUSE: a container with a read-only root starts while a file system below a
// directory of the machine does not answer.
func TestReadOnlyRootBesideFUSE(t *testing.T) {
	eachFUSE(t, func(t *testing.T, f *fuse, g *rig) {
		f.hangs.Store(true)
		c := g.container("c", "echo started")
		c.Security.ReadOnlyRoot = true
		if got := g.output(c); got != "started\n" {
			t.Errorf("got %q", got)
		}
	})
}

// TestFUSEInPrivateDirectory: an agent that is not root starts containers while another user has a file
// system in a directory that only that user may enter.
func TestFUSEInPrivateDirectory(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	if probe(t.Context(), Config{DataDir: t.TempDir()}, UserNamespace) != nil {
		t.Skip("SKIPPED: no user namespaces")
	}
	const nobody = 65534
	f := mountFUSE(t, "/mnt")
	private := filepath.Dir(f.dir)
	dir, err := os.MkdirTemp("/tmp", "hawser-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(private, 0o700), os.Chmod(filepath.Dir(private), 0o755), os.Chown(dir, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, agentOptions{dir: dir, uid: nobody, iso: UserNamespace})
	for i, readOnly := range []bool{false, true} {
		c := runtime.Container{
			Pod: testPod, Name: "c", Attempt: i, Argv: []string{"true"}, LogPath: filepath.Join(dir, "log"),
			Security: runtime.Security{ReadOnlyRoot: readOnly},
		}
		if ans := a.start(t, c); ans.Err != "" {
			t.Errorf("read-only root %t: %s", readOnly, ans.Err)
		}
	}
	a.end(t)
}

// TestStopBesideStuckContainer: a process of a container that cannot be killed does not keep the
// agent from ending.
func TestStopBesideStuckContainer(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := mountFUSE(t, "/mnt")
	g := newRig(t, Config{Isolation: Namespaces})
	c := g.container("stuck", "echo started; (while test -d /volume; do :; done) & wait")
	c.Mounts = []runtime.Mount{{HostPath: f.dir, ContainerPath: "/volume"}}
	id := g.start(c)
	g.waitLog(id, "started")
	f.hangs.Store(true)
	<-f.taken
	stuck, err := g.find(g.ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := watchShim(stuck.spec.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.hangUp()
	if err := g.Stop(g.ctx, id, patience); err != nil {
		t.Error(err)
	}
	for err == nil { // until the files of the shim are closed
		var rep reply
		err = conn.recv(&rep)
	}
	g.stop()
	f.unmount()
	// The next agent has what is left, and removes it.
	newRig(t, Config{DataDir: g.cfg.DataDir, Isolation: Namespaces})
}

// TestAnswers: a path in a file system that does not answer is known as such, also by a symbolic link.
func TestAnswers(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := mountFUSE(t, "/mnt")
	g := newRig(t, Config{Isolation: None})
	dir := t.TempDir()
	link, missing := filepath.Join(dir, "link"), filepath.Join(dir, "missing")
	if err := os.Symlink(f.dir, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{f.dir, filepath.Join(f.dir, "missing"), link, missing} {
		if err := g.Answers(t.Context(), path); err != nil {
			t.Error(err)
		}
	}
	f.hangs.Store(true)
	for _, path := range []string{f.dir, filepath.Join(f.dir, "missing"), link} {
		if err := g.Answers(t.Context(), path); err == nil {
			t.Errorf("%s answers", path)
		}
	}
	for _, path := range []string{dir, missing} {
		if err := g.Answers(t.Context(), path); err != nil {
			t.Error(err)
		}
	}
}

// TestAnswersWithoutAsking: no process asks for a path that leads into no remote file system, however
// slow the machine is. What it leads to is told by its symbolic links.
func TestAnswersWithoutAsking(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := mountFUSE(t, "/mnt")
	dir, top := t.TempDir(), filepath.Dir(f.dir)
	r := &Runtime{looks: newLooks(func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	})}
	here, there, loop := filepath.Join(dir, "here"), filepath.Join(dir, "there"), filepath.Join(dir, "loop")
	up, err := filepath.Rel(dir, f.dir)
	if err = errors.Join(err, os.Symlink(top, here), os.Symlink(up, there), os.Symlink("loop", loop)); err != nil {
		t.Fatal(err)
	}
	f.hangs.Store(true)
	for path, local := range map[string]bool{
		dir: true, filepath.Join(dir, "missing/x"): true, top: true, here: true, "/etc/mtab": true, "/proc/mounts": true, "/": true,
		f.dir: false, there: false, there + "/x": false, filepath.Join(here, "mount", "x"): false, here + "/../user/mount": false,
		dir + "/missing/../there": false, "/proc/self/root" + f.dir: false, loop: false,
	} {
		if err := r.Answers(t.Context(), path); (err == nil) != local {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestAnswersToOthers: a caller that waits no longer gets the error of its context. It does not end the
// look of another one for the same path.
func TestAnswersToOthers(t *testing.T) {
	if !inOwnMounts(t) {
		return
	}
	f := mountFUSE(t, "/mnt")
	synctest.Test(t, func(t *testing.T) {
		reply := make(chan struct{})
		r := &Runtime{looks: newLooks(func(ctx context.Context, _ string) error {
			select {
			case <-reply:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})}
		got := make(chan error, 1)
		go func() { got <- r.Answers(t.Context(), f.dir) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Answers(ctx, f.dir); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		close(reply)
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}
