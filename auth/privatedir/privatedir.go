// Package privatedir makes directories that only this process's user may enter, and
// checks those that exist. It never changes one that it has not made: a directory
// may be somebody else's, or everybody's, as /tmp is.
package privatedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Make makes dir with mode 0700 if it is missing, and what is missing on the way to
// it, and fails as Check does if it is there and not private.
func Make(dir string) error {
	err := Check(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: choose a directory that can be written", err)
	}
	return Check(dir) // another may have made it meanwhile
}

// Check returns nil if dir is a directory of this process's user that nobody else
// may enter. It creates nothing. The error about one that does not exist wraps
// fs.ErrNotExist.
func Check(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory: choose another path", dir)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d: choose a directory of your own", dir, st.Uid)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is open to other users (mode %04o): choose a directory of its own, or if it is one, run chmod 700 %s", dir, info.Mode().Perm(), dir)
	}
	return nil
}
