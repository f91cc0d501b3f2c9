package pods

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/node/runtime/memory"
)

// TestSlowRemoval: while a large directory of a deleted pod is being removed, calls are answered
// and pods are started and ended; only a pod with that uid waits.
func TestSlowRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memory.Options{})
		again := newPod("again", nil)
		for _, uid := range []string{"gone", string(again.UID)} {
			if err := os.MkdirAll(filepath.Join(w.cfg.Dir, "pods", uid, "volumes"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		removing, release := make(chan string, 8), make(chan struct{})
		removeDir = func(path string) error {
			removing <- path
			<-release
			return os.RemoveAll(path)
		}
		defer func() { removeDir = os.RemoveAll }()
		w.start()
		if len(removing) != 1 {
			t.Fatalf("%d removals under way, want 1", len(removing))
		}
		w.create(newPod("a", nil))
		w.create(again)
		advance(10 * time.Minute) // and more sweeps
		w.wantPhase("a", "Running")
		if got := w.pod("again").Status.Phase; got != "Pending" {
			t.Errorf("pod again is %s while its directory is being removed", got)
		}
		if got := len(w.runner.list()); got != 2 {
			t.Errorf("%d pods are listed, want 2", got)
		}
		w.remove("a", 0)
		advance(time.Minute)
		if w.find("default", "a") != nil {
			t.Error("a pod cannot end during a removal")
		}
		close(release)
		advance(time.Second)
		w.wantPhase("again", "Running")
		if _, err := os.Stat(filepath.Join(w.cfg.Dir, "pods", "gone")); !os.IsNotExist(err) {
			t.Errorf("the directory is still there: %v", err)
		}
		w.stop()
	})
}
