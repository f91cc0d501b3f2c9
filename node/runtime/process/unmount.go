package process

// Mounts below a directory, which are unmounted before its files are removed.

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// unmountBelow unmounts every mount of this mount namespace at or below dir, and fails if
// one is left: removing the files of a mounted file system could not be undone.
func unmountBelow(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for range 2 {
		ms, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		if err != nil || len(ms) == 0 {
			return err
		}
		for _, m := range slices.Backward(ms) {
			_ = unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
		}
	}
	return fmt.Errorf("something is mounted in %s", dir)
}
