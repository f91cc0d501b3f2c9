package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, tt := range []struct {
		content string
		mode    os.FileMode
	}{{"first, and longer", 0o644}, {"second", 0o600}} {
		if err := Write(path, []byte(tt.content), tt.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != tt.content {
			t.Errorf("%q, %v, want %q", got, err, tt.content)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != tt.mode {
			t.Errorf("%v, %v, want mode %v", info, err, tt.mode)
		}
	}
}

// TestWriteFails: an error leaves the target as it was, and no temporary file.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "d")
	if err := os.MkdirAll(filepath.Join(path, "in it"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if err := Write(filepath.Join(dir, "missing", "f"), []byte("x"), 0o600); err == nil {
		t.Error("a file was written in a directory that does not exist")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %v, want the directory alone", left, err)
	}
}
