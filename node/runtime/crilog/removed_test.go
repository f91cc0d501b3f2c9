package crilog

// What somebody else does to the file of a log.

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestLogRemovedFromOutside(t *testing.T) {
	for name, remove := range map[string]func(path string) error{
		"removed":  os.Remove,
		"renamed":  func(path string) error { return os.Rename(path, path+".old") },
		"replaced": func(path string) error { return os.Rename(path+".new", path) },
	} {
		path := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			w, err := Create(path, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			out := w.Stream(Stdout)
			write := func(line string) {
				if _, err := out.Write([]byte(line + "\n")); err != nil {
					t.Fatal(err)
				}
			}
			write("before")
			if err := remove(path); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lookInterval)
			write("after")
			if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), "after") {
				t.Errorf("%s: the log holds %q, %v; want what was written later", name, b, err)
			}
			if n := w.Dropped(); n != 0 {
				t.Errorf("%s: %d bytes dropped", name, n)
			}
		})
	}
}

// TestOnlyRegularFiles: what somebody has put in the place of a log is neither waited for nor
// followed to another file.
func TestOnlyRegularFiles(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"FIFO": func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"link": func(path string) error { return os.Symlink(filepath.Join(filepath.Dir(path), "other"), path) },
	} {
		path := filepath.Join(t.TempDir(), "0.log")
		other := filepath.Join(filepath.Dir(path), "other")
		write(t, other, "mine\n")
		synctest.Test(t, func(t *testing.T) {
			w, err := Create(path, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			out := w.Stream(Stdout)
			for _, line := range []string{"before\n", "after\n"} {
				if _, err := out.Write([]byte(line)); err != nil {
					t.Fatal(err)
				}
				if line == "before\n" {
					if err := errors.Join(os.Remove(path), put(path)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(lookInterval)
				}
			}
			if w.Dropped() == 0 {
				t.Errorf("%s: nothing counted as dropped", name)
			}
			if b, err := os.ReadFile(other); err != nil || string(b) != "mine\n" {
				t.Errorf("%s: another file has %q, %v", name, b, err)
			}
			if err := Read(t.Context(), path, Options{}, io.Discard, func() {}); err == nil {
				t.Errorf("%s: it can be read", name)
			}
			if f, err := Open(path); err == nil {
				t.Errorf("%s: it is opened", name)
				_ = f.Close()
			}
		})
	}
}
