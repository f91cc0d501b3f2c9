package runtime_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// deep makes a tower of directories, which no path can name, with a file at its end.
func deep(t *testing.T, dir string, levels int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range levels {
		if err == nil {
			err = unix.Mkdirat(at, "d", 0o755)
		}
		var next int
		if err == nil {
			next, err = unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		_ = unix.Close(at)
		at = next
	}
	if err == nil {
		err = unix.Mknodat(at, "f", unix.S_IFREG|0o644, 0)
	}
	if err = errors.Join(err, unix.Close(at)); err != nil {
		t.Fatal(err)
	}
}

// TestRemoveAllDeep: a tower of directories is removed with few file descriptors.
func TestRemoveAllDeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	for _, sub := range []string{"a", "b"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		deep(t, filepath.Join(dir, sub), 2000)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) }()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	if err := runtime.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}

// TestRemoveAll: files, links, wide and closed directories go; what a link leads to stays.
func TestRemoveAll(t *testing.T) {
	kept := filepath.Join(t.TempDir(), "kept")
	dir := filepath.Join(t.TempDir(), "dir")
	err := errors.Join(os.WriteFile(kept, nil, 0o600), os.MkdirAll(filepath.Join(dir, "wide"), 0o755), os.Mkdir(filepath.Join(dir, "closed"), 0o755),
		os.WriteFile(filepath.Join(dir, "closed", "f"), nil, 0o400), os.Symlink(kept, filepath.Join(dir, "link")),
		os.Symlink(filepath.Dir(kept), filepath.Join(dir, "closed", "link")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for i := range 3000 {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "wide", fmt.Sprint(i)), nil, 0o600))
	}
	if err = errors.Join(err, os.Chmod(filepath.Join(dir, "closed"), 0)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing
		if err := runtime.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
	if _, err := os.Lstat(kept); err != nil {
		t.Error(err)
	}
	if err := runtime.RemoveAll(kept); err != nil {
		t.Errorf("a file: %v", err)
	}
	if _, err := os.Lstat(kept); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
}
