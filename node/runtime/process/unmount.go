package process

// Mounts below a directory, which are unmounted before its files are removed.

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// under says whether path is dir or below it. Both are clean.
func under(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// unmountBelow takes away whatever is mounted in dir as this process sees it, and
// fails if something is left: removing the files of a mounted file system is the
// one mistake that could never be put right.
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
