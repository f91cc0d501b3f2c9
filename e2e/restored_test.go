// A store that is put back to a copy of itself: what was written since is undone on nodes, too.

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRestored restores a backup of the data directory as "hawser help backup" says. The agents,
// which nobody restarts, have watched the store up to a version that it does not have any more:
// they have to stop the pod that is not there now and run the one that is made next.
func TestRestored(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "1")
	etcd, backup := filepath.Join(c.dir, "etcd", "member-data"), filepath.Join(t.TempDir(), "etcd") // beside it is a socket
	again := func(change func()) {
		args := c.end(t, "server", syscall.SIGTERM)
		change()
		run(t, args, filepath.Join(c.dir, "server"))
		eventually(t, "the API answers again", func() error {
			_, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			return err
		})
	}
	c.podWith(t, "kept", "", "", "sleep", "10000")
	again(func() { must(t, os.CopyFS(backup, os.DirFS(etcd))) })
	c.podWith(t, "undone", "", "", "sleep", "10000")
	if n := len(c.shims()); n != 2 {
		t.Fatalf("%d containers, want 2", n)
	}
	maps := c.client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	for range 1000 { // more than a server writes in the time that a test waits
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "undone-"}}, metav1.CreateOptions{})
		must(t, err)
	}
	again(func() {
		must(t, os.RemoveAll(etcd))
		must(t, os.CopyFS(etcd, os.DirFS(backup)))
		must(t, os.Chmod(etcd, 0o700))
	})
	c.podWith(t, "later", "", "", "sleep", "10000")
	eventually(t, "the pod that was undone has ended", func() error {
		if n := len(c.shims()); n != 2 {
			return fmt.Errorf("%d containers, want 2", n)
		}
		return nil
	})
	if out, stderr, code := c.kubectl(t, "", "exec", "kept", "--", "echo", "works"); code != 0 || out != "works\n" {
		t.Error(out + stderr)
	}
}
