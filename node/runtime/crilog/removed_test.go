package crilog

// What somebody else does to the file of a log.

import (
	"os"
	"path/filepath"
	"strings"
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
