package pods

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// That a pod cannot be kept on disk is logged once, and again when it could be meanwhile.
func TestUnsavedIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	dir := filepath.Join(t.TempDir(), "data")
	w := &worker{r: &Runner{places: places{dir: dir}}, log: slog.New(slog.NewTextHandler(&log, nil))}
	w.id.UID = "uid"
	generation := int64(0)
	fails := func(want int) {
		t.Helper()
		for range 2 {
			generation++
			pod := &corev1.Pod{}
			pod.Generation = generation
			w.save(pod)
		}
		if got := strings.Count(log.String(), "pod is not kept on disk"); got != want {
			t.Errorf("logged %d times, want %d: %s", got, want, log.String())
		}
	}
	// A directory in its place makes the file's last step fail, whose error has a random name.
	at := w.r.places.checkpoint("uid")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	fails(1)
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	fails(1)
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	fails(2)
}
