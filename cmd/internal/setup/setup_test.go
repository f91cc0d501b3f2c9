package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDataDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	got, err := DataDir(dir)
	if err != nil || got != dir {
		t.Fatalf("%q, %v", got, err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := DataDir(filepath.Join(file, "below")); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a directory below a file: %v", err)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(dir, "lock")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Lock(dir, "lock"); err == nil || !strings.Contains(err.Error(), dir+" is in use") {
		t.Errorf("taken twice: %v", err)
	}
	unlock()
	again, err := Lock(dir, "lock")
	if err != nil {
		t.Fatalf("not given back: %v", err)
	}
	again()
}

func TestLogFormat(t *testing.T) {
	for format, ok := range map[string]bool{"text": true, "json": true, "xml": false, "": false} {
		if err := CheckLogFormat(format); (err == nil) != ok {
			t.Errorf("%q: %v", format, err)
		}
	}
}
