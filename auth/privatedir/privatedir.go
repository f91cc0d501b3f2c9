// Package privatedir makes directories that only this process's user may enter, and
// checks existing ones. It never changes a directory that it has not made: that may
// belong to another user, or be shared, as /tmp is.
package privatedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Make makes dir and its missing parents with mode 0700. If dir exists and is not
// private, it fails as Check does.
func Make(dir string) error {
	err := Check(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: choose a directory that can be written", err)
	}
	return Check(dir) // another process may have made it meanwhile
}

// Check returns nil if dir is a directory of this process's user that no other user may
// enter. It creates nothing. If dir does not exist the error wraps fs.ErrNotExist.
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
		return fmt.Errorf("%s is open to other users (mode %04o): choose a directory of its own, or if it is one, run chmod 700 on it", dir, info.Mode().Perm())
	}
	return nil
}
