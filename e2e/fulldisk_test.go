// A disk without space.

package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser/e2e/await"
)

// fullDisk copies the directory $1 to a file system of its own at $2, leaves no space there, and
// becomes the rest of its arguments.
const fullDisk = `
mount --make-rprivate /
mount -t tmpfs -o size=200m,mode=700 tmpfs "$2"
cp -a --sparse=never "$1/." "$2"
dd if=/dev/zero of="$2/fill" bs=4k 2>"$2.said" || true
grep -q 'No space left' "$2.said"
shift 2
exec "$@"
`

// TestFullDisk: a server is started again with no space left for its data, so that things can
// be deleted.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a file system needs root")
	}
	dir, port := shortTempDir(t), await.FreePort(t)
	data, full := filepath.Join(dir, "data"), filepath.Join(dir, "full")
	must(t, os.Mkdir(full, 0o700))
	first := startLoneAt(t, port, nil, data)
	must(t, first.Process.Signal(syscall.SIGTERM))
	first.end(t)
	s := startLoneAt(t, port, []string{"sh", "-eu", "-c", fullDisk, "sh", data, full}, full)
	must(t, s.Process.Signal(syscall.SIGTERM))
	if status := s.end(t); !status.Exited() || status.ExitStatus() != 0 {
		t.Errorf("the server ended with %v", status)
	}
}
