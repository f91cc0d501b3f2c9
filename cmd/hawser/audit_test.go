package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// A log of bounded size is rotated, is nobody else's to read, and goes on where it was.
func TestRotatedFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	r := rotatedFile{flag: "audit-log", path: filepath.Join(dir, "audit.log"), maxBackup: 2, maxSize: 1}
	half := bytes.Repeat([]byte("x"), 600<<10)
	for range 2 {
		w, err := r.open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(half); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v: want the file and an old one", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 || info.Size() != int64(len(half)) {
			t.Errorf("%v, %v", info, err)
		}
	}
	r.path = filepath.Join(r.path, "x")
	if _, err := r.open(); err == nil {
		t.Error("a file below a file was opened")
	}
}
