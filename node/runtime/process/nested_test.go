package process

// Mount points in directories that are not the agent's.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// TestPlacesOfUnprivilegedAgent: an agent that is not root makes a mount point and a working directory
// in directories of the machine that are not its own. What is hidden there stays hidden.
func TestPlacesOfUnprivilegedAgent(t *testing.T) {
	const nobody = 65534
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to become nobody")
	}
	dir, err := os.MkdirTemp("/var/lib", "hawser-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	volume := filepath.Join(dir, "volume")
	if err = errors.Join(os.Mkdir(volume, 0o755), os.Chown(volume, nobody, nobody), os.Chown(dir, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	if probe(t.Context(), Config{DataDir: t.TempDir()}, UserNamespace) != nil {
		t.Skip("SKIPPED: no user namespaces")
	}
	write(t, filepath.Join(dir, "secret"), "word", 0o644)
	write(t, filepath.Join(volume, "file"), "text\n", 0o644)
	a := startAgent(t, agentOptions{dir: dir, uid: nobody, iso: UserNamespace})
	for i, uid := range []int64{0, 1234} {
		c := runtime.Container{
			Pod: testPod, Name: "c", Attempt: i, UID: &uid, LogPath: filepath.Join(dir, "log"),
			WorkingDir: "/usr/share/hawser-test/new",
			Argv:       []string{"sh", "-c", "exec > /var/lib/hawser-new/deep/out 2>&1; pwd; cat /etc/ssl/hawser.conf; touch here; ls -A " + dir + ""},
			Mounts: []runtime.Mount{
				{HostPath: volume, ContainerPath: "/var/lib/hawser-new/deep"},
				{HostPath: volume, SubPath: "file", ContainerPath: "/etc/ssl/hawser.conf"},
			},
		}
		if ans := a.start(t, c); ans.Err != "" {
			t.Errorf("user %d: %s", uid, ans.Err)
			continue
		}
		if out, err := os.ReadFile(filepath.Join(volume, "out")); err != nil || string(out) != "/usr/share/hawser-test/new\ntext\n" {
			t.Errorf("user %d: %q, %v", uid, out, err)
		}
	}
	a.end(t)
}

// TestMountPointReplaced: who writes to a volume, and exchanges a directory in it while another volume is
// being mounted there, does not get the read-only mount of that writable.
func TestMountPointReplaced(t *testing.T) {
	g, _ := attackRig(t)
	shared, ro := t.TempDir(), t.TempDir()
	h, l := filepath.Join(shared, "h"), filepath.Join(shared, "l")
	if err := errors.Join(os.Mkdir(h, 0o755), os.Symlink("/proc", l)); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Microsecond):
				_ = unix.Renameat2(unix.AT_FDCWD, h, unix.AT_FDCWD, l, unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(stop); <-done }()
	started := 0
	for i := range 100 {
		c := g.container(fmt.Sprintf("c%d", i), "for i in 1 2 3 4 5 6 7 8 9; do echo > /data/h/planted; echo > /data/l/planted; done 2>/dev/null; true")
		c.Mounts = []runtime.Mount{{HostPath: shared, ContainerPath: "/data"}, {HostPath: ro, ContainerPath: "/data/h", ReadOnly: true}}
		id, err := g.Start(g.ctx, c)
		if err != nil {
			continue // it does not start instead
		}
		started++
		g.wait(id)
		if list, err := os.ReadDir(ro); err != nil || len(list) > 0 {
			t.Fatalf("start %d: a read-only volume was written to: %v, %v", i, list, err)
		}
	}
	if started == 0 {
		t.Error("no container started")
	}
}
