// Removal of directories that containers have written to.

package runtime

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// maxRemoveDepth is how many directories are open at a time. A container can nest any number.
	maxRemoveDepth = 64
	// removeBatch is how many names are read at a time.
	removeBatch = 1024
)

// RemoveAll removes dir with its content, however deep that is. It is no error if dir does not
// exist. If something cannot be removed all else is. A user that is not root cannot empty a
// directory whose mode forbids it; RemoveAll changes the mode of such directories of this user.
// Nothing may change dir meanwhile.
func RemoveAll(dir string) error {
	if err := unix.Unlinkat(unix.AT_FDCWD, dir, 0); !errors.Is(err, unix.EISDIR) {
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	top, err := openDir(unix.AT_FDCWD, dir)
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	r := removal{top}
	if err = errors.Join(r.empty(top, 0), top.Close()); err != nil {
		return fmt.Errorf("remove what is in %s: %w", dir, err)
	}
	return os.Remove(dir)
}

// A removal empties top.
type removal struct{ top *os.File }

// empty removes what is in d, which is so far below the top.
func (r removal) empty(d *os.File, depth int) error {
	for {
		if _, err := d.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := d.Readdirnames(removeBatch)
		if len(names) == 0 {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		removed := false
		var first error
		for _, name := range names {
			if rerr := r.remove(d, name, depth); rerr == nil {
				removed = true
			} else if first == nil {
				first = rerr
			}
		}
		if !removed {
			return first
		}
	}
}

// remove removes what has that name in d. A directory at maxRemoveDepth is moved to the top, where
// it is found later.
func (r removal) remove(d *os.File, name string, depth int) error {
	at := int(d.Fd())
	err := permitted(at, func() error { return unix.Unlinkat(at, name, 0) })
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR):
		return fmt.Errorf("%s: %w", name, err)
	}
	child, err := openDir(at, name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer child.Close()
	if depth == maxRemoveDepth {
		to := ".removed-" + strconv.FormatUint(rand.Uint64(), 36) //nolint:gosec // must differ, not be secret
		err = permitted(int(child.Fd()), func() error { return unix.Renameat(at, name, int(r.top.Fd()), to) })
	} else if err = r.empty(child, depth+1); err == nil {
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name[:min(len(name), 32)], err)
	}
	return nil
}

// permitted does what a directory's mode may forbid.
func permitted(dir int, do func() error) error {
	err := do()
	if errors.Is(err, unix.EACCES) && unix.Fchmod(dir, 0o700) == nil {
		err = do()
	}
	return err
}

// openDir opens a directory, whose mode may forbid it.
func openDir(at int, name string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(at, name, flags, 0)
	if errors.Is(err, unix.EACCES) && unix.Fchmodat(at, name, 0o700, 0) == nil {
		fd, err = unix.Openat(at, name, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
