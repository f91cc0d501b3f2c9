package process

// Tests of what the runtime says of itself.

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestHealthyOnFullDisk: a full disk is no end of the runtime: pods that run go on.
func TestHealthyOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	g := newRig(t, Config{DataDir: dir, Isolation: None})
	path := filepath.Join(dir, "healthy")
	if err := errors.Join(os.Remove(path), os.Symlink("/dev/full", path)); err != nil {
		t.Fatal(err)
	}
	if err := g.Healthy(g.ctx); err != nil {
		t.Error(err)
	}
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := g.Healthy(g.ctx); err == nil {
		t.Error("a directory that cannot be written is healthy")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
