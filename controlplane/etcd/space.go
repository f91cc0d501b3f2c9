// Whether a new member has room for what it allocates at once.

package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"
)

// newSpace is what a new member takes: its log, the next file of its log, and some for the
// database. Without, etcd panics.
func newSpace() int64 { return 2*wal.SegmentSizeBytes + 16<<20 }

// commitSpace is what commits may take. etcd ends the process at one that the disk does not take.
const commitSpace = 4 << 20

// checkSpace refuses a new member in dir if the file system has less than need bytes free. One
// that is there already is started with whatever there is, so that things can be deleted: its
// files may have the room.
func checkSpace(dir string, need int64) error {
	if _, err := os.Stat(filepath.Join(dir, memberDir, "member", "wal")); !errors.Is(err, fs.ErrNotExist) {
		return nil // etcd says what is wrong with it
	}
	if err := checkFree(dir, need); err != nil {
		return fmt.Errorf("%w, or choose another directory", err)
	}
	return nil
}

// checkFree is an error if the file system of dir has less than need bytes free.
func checkFree(dir string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("how much of its file system is free is not known: %w", err)
	}
	free := int64(st.Bavail) * st.Bsize //nolint:gosec // disks are smaller than 8 EiB
	if free < need {
		return fmt.Errorf("%d MiB of its file system are free, and the store takes %d MiB: make room", free>>20, need>>20)
	}
	return nil
}
