package process

// A FUSE daemon that takes requests and does not answer.

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
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

func mountFUSE(t *testing.T) *fuse {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("SKIPPED: no FUSE:", err)
	}
	// Not where tests have their files: containers do not see those.
	top, err := os.MkdirTemp("/mnt", "hawser-test-")
	dir := filepath.Join(top, "user", "mount")
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

// TestFUSEHangs: containers start, end and are removed while a file system of the machine does not
// answer.
func TestFUSEHangs(t *testing.T) {
	f := mountFUSE(t)
	g := newRig(t, Config{Isolation: Namespaces})
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
}

// TestReadOnlyRootBesideFUSE: a container with a read-only root starts while a file system below a
// directory of the machine does not answer.
func TestReadOnlyRootBesideFUSE(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		f := mountFUSE(t)
		f.hangs.Store(true)
		g := newRig(t, Config{Isolation: iso})
		c := g.container("c", "echo started")
		c.Security.ReadOnlyRoot = true
		if got := g.output(c); got != "started\n" {
			t.Errorf("got %q", got)
		}
	})
}

// TestStopBesideStuckContainer: a process of a container that cannot be killed does not keep the
// agent from ending.
func TestStopBesideStuckContainer(t *testing.T) {
	f := mountFUSE(t)
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
