package privatedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMake(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := Check(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("checked before it is there: %v", err)
	}
	for range 2 {
		if err := Make(dir); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
}

func TestOthersDirectoriesAreLeftAlone(t *testing.T) {
	for _, mode := range []fs.FileMode{0o755, 0o777 | fs.ModeSticky, 0o750, 0o701, 0o770} {
		dir := t.TempDir()
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := Make(dir); err == nil || !strings.Contains(err.Error(), dir+" is open to other users") || !strings.Contains(err.Error(), "chmod 700") {
			t.Errorf("mode %v: %v", mode, err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode()&^fs.ModeDir != mode {
			t.Errorf("mode %v was changed to %v, %v", mode, info.Mode(), err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Make(file); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("a file: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: another user's directory needs root")
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, 1234, 1234)); err != nil {
		t.Fatal(err)
	}
	if err := Make(dir); err == nil || !strings.Contains(err.Error(), "belongs to user 1234") {
		t.Errorf("another user's: %v", err)
	}
}
