package process

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// TestRecordOnFullDisk: how a container ended is recorded although there is no room for a file.
func TestRecordOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to mount a small disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k,nr_inodes=2"); err != nil { // of which the root has one
		t.Skip("SKIPPED: no small disk can be mounted: ", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	path := filepath.Join(dir, statusName)
	before := record{State: runtime.Running, PID: 7, Message: "longer than what comes after it"}
	if err := writeRecord(path, before); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Create(filepath.Join(dir, "other")); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk has room: %v", err)
	}
	if err := writeRecord(path, record{State: runtime.Exited, ExitCode: 3}); err != nil {
		t.Error(err)
	}
	var got record
	if err := readJSON(path, &got); err != nil || got.State != runtime.Exited || got.ExitCode != 3 || got.Message != "" {
		t.Errorf("%+v, %v", got, err)
	}
}
