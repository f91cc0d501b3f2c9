package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/node/runtime"
)

// TestOptionalMountFails: an optional mount is not left out for what is wrong with the pod's other mounts.
func TestOptionalMountFails(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		c := g.container("c", "true")
		c.Mounts = []runtime.Mount{
			{HostPath: t.TempDir(), ContainerPath: "/outer", ReadOnly: true},
			{HostPath: t.TempDir(), ContainerPath: "/outer/no/place", Optional: true},
		}
		if _, err := g.Start(g.ctx, c); err == nil || !strings.Contains(err.Error(), `at "/outer/no/place": `) || !strings.Contains(err.Error(), "read-only file system") {
			t.Errorf("started: %v", err)
		}
	})
}

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
